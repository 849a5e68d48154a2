//! What went wrong with a download, and what a person does about it.

use std::io::{Error, ErrorKind};

use hf_hub::api::sync::ApiError;

use super::Id;
use crate::hub::{HubError, HubSettings};

/// The cause decides the mend: the network, the hub's answer, or this machine's disk.
pub(super) fn explained(id: &Id, settings: &HubSettings, err: ApiError) -> HubError {
    let name = id.repo.clone();
    let offline = |why: String| HubError::Offline { id: name.clone(), why };
    match err {
        ApiError::TooManyRetries(inner) => explained(id, settings, *inner),
        ApiError::RequestError(err) => match *err {
            ureq::Error::StatusCode(code) => refused(id, settings, code),
            ureq::Error::Io(err) => unreadable(settings, &err).unwrap_or_else(|| offline(err.to_string())),
            other => offline(other.to_string()),
        },
        ApiError::IoError(err) => unreadable(settings, &err).unwrap_or_else(|| offline(err.to_string())),
        ApiError::LockAcquisition(path) => HubError::Busy { id: name, path },
        other => HubError::Refused { id: name, why: format!("sent what was not asked for ({other})") },
    }
}

fn refused(id: &Id, settings: &HubSettings, status: u16) -> HubError {
    let name = match &id.revision {
        Some(revision) => format!("{}@{revision}", id.repo),
        None => id.repo.clone(),
    };
    match status {
        // The hub's answer to strangers, whether there is such a repository or not.
        401 if settings.hf_token.is_none() => HubError::NeedsLogin { id: name },
        401 => HubError::BadToken { id: name },
        403 => HubError::Gated { id: name },
        404 => HubError::NotFound { id: name },
        429 => {
            HubError::Refused { id: name, why: "has answered too often in a short time (status 429)".into() }
        }
        code => HubError::Refused { id: name, why: format!("answered with status {code}") },
    }
}

/// The error of a file, where it isn't the network's.
fn unreadable(settings: &HubSettings, err: &Error) -> Option<HubError> {
    let is_disk = matches!(
        err.kind(),
        ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::FileTooLarge
    );
    is_disk.then(|| HubError::io(&settings.hf_cache, err))
}
