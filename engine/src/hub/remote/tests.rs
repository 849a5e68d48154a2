//! A hub of our own on loopback: what is asked of it, and what its answers turn into.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::json;

use super::super::resolve;
use super::*;

const ID: &str = "org/name";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How this hub differs from a good one.
#[derive(Clone, Default)]
struct Manners {
    /// Answers all requests with this status.
    status: Option<u16>,
    /// Files are elsewhere, as large ones are.
    redirects: bool,
    /// Sends half of a file and hangs up, this many times.
    hangups: usize,
    /// Sends the whole file whatever range is asked for.
    no_ranges: bool,
    /// The token that it wants.
    token: Option<&'static str>,
}

struct Hub {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hub {
    fn start(files: &[(&str, &str)], manners: Manners) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let files: BTreeMap<String, String> =
            files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let (asked, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (log, stopped) = (Arc::clone(&asked), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut manners = manners;
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                answer(&stream.unwrap(), &files, &mut manners, &log);
            }
        });
        Self { url, asked, stop, thread: Some(thread) }
    }

    /// Files of which bytes beyond the first were asked for.
    fn fetched(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        TcpStream::connect(self.url.trim_start_matches("http://")).ok();
        self.thread.take().unwrap().join().ok();
    }
}

/// Path and headers, in lower case.
fn request(stream: &TcpStream) -> Option<(String, String)> {
    let mut lines = BufReader::new(stream).lines().map_while(|line| line.ok());
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    Some((path, headers.join("\n").to_lowercase()))
}

fn answer(
    mut stream: &TcpStream,
    files: &BTreeMap<String, String>,
    manners: &mut Manners,
    log: &Mutex<Vec<String>>,
) -> Option<()> {
    let (path, headers) = request(stream)?;
    let mut reply = |status: u16, extra: &str, body: &str, sent: usize| {
        let head = format!(
            "HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {}\r\n{extra}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).ok();
        stream.write_all(&body.as_bytes()[..sent]).ok()
    };
    let is_known = manners.token.is_none_or(|token| headers.contains(&format!("bearer {token}")));
    let status = manners.status.or((!is_known).then_some(401));
    if let Some(status) = status {
        return reply(status, "", "", 0);
    }
    if path.starts_with("/api/models/org/name/revision/") {
        let siblings: Vec<_> = files.keys().map(|name| json!({ "rfilename": name })).collect();
        let body = json!({ "sha": COMMIT, "siblings": siblings }).to_string();
        return reply(200, "Content-Type: application/json\r\n", &body, body.len());
    }
    let name = path.strip_prefix("/org/name/resolve/main/").or(path.strip_prefix("/elsewhere/"));
    let Some((name, text)) = name.and_then(|name| files.get_key_value(name)) else {
        return reply(404, "", "", 0);
    };
    let about = format!("ETag: \"etag-of-{name}\"\r\nX-Repo-Commit: {COMMIT}\r\n");
    if manners.redirects && !path.starts_with("/elsewhere/") {
        return reply(302, &format!("{about}Location: /elsewhere/{name}\r\n"), "", 0);
    }
    let range = headers.split("range: bytes=").nth(1)?.lines().next()?.to_owned();
    if range != "0-0" {
        log.lock().unwrap().push(format!("{name}@{range}"));
    }
    let (from, to) = range.split_once('-')?;
    let (from, to) = (from.parse::<usize>().ok()?, to.parse::<usize>().map_or(text.len(), |to| to + 1));
    if manners.no_ranges && range != "0-0" {
        return reply(200, &about, text, text.len());
    }
    let part = text.get(from..to)?;
    let about = format!("{about}Content-Range: bytes {from}-{}/{}\r\n", to - 1, text.len());
    let hangs_up = range != "0-0" && manners.hangups > 0;
    manners.hangups -= usize::from(hangs_up);
    reply(206, &about, part, if hangs_up { part.len() / 2 } else { part.len() })
}

fn settings(hub: &Hub, root: &Path) -> HubSettings {
    HubSettings {
        cache: root.join("cache"),
        hf_cache: root.join("hf"),
        hf_endpoint: Some(hub.url.clone()),
        ..Default::default()
    }
}

fn find(settings: &HubSettings) -> Result<ModelFiles> {
    resolve(ID, settings, &mut |_| {})
}

const MODEL: [(&str, &str); 9] = [
    ("README.md", "words"),
    ("config.json", "{}"),
    ("tokenizer.json", "{\"model\":1}"),
    ("chat_template.jinja", "{{ messages }}"),
    (
        "model.safetensors.index.json",
        r#"{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}"#,
    ),
    ("model-1.safetensors", "the first half"),
    ("model-2.safetensors", "the second half"),
    ("original/model.safetensors", "the same again"),
    ("pytorch_model.bin", "the same again"),
];

#[test]
fn only_what_a_model_needs_is_fetched_and_only_once() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(&MODEL, Manners { redirects: true, ..Default::default() });
    let settings = settings(&hub, dir.path());
    let mut seen = Vec::new();
    let files = resolve(ID, &settings, &mut |p| seen.push((p.file, p.done, p.total))).unwrap();
    let ModelFiles::Folder(folder) = &files else { panic!("{files:?}") };
    assert_eq!(fs::read_to_string(folder.join("model-2.safetensors")).unwrap(), "the second half");
    let fetched = hub.fetched();
    let names: Vec<&str> = fetched.iter().map(|f| f.split('@').next().unwrap()).collect();
    let needed = [
        "chat_template.jinja",
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "model-1.safetensors",
        "model-2.safetensors",
    ];
    assert_eq!(names, needed);
    assert!(seen.contains(&("model-1.safetensors".into(), 14, Some(14))), "{seen:?}");
    // Again, and without a network: nothing is asked.
    let offline = HubSettings { offline: true, hf_endpoint: Some("http://127.0.0.1:9".into()), ..settings };
    assert_eq!(find(&offline).unwrap(), files);
    let by_commit = resolve(&format!("{ID}@{COMMIT}"), &offline, &mut |_| {});
    assert_eq!(by_commit.unwrap(), files);
    assert_eq!(hub.fetched().len(), needed.len());
}

#[test]
fn a_file_of_the_snapshot_is_not_fetched_again_when_another_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(&MODEL, Manners::default());
    let settings = settings(&hub, dir.path());
    let ModelFiles::Folder(folder) = find(&settings).unwrap() else { panic!("no folder") };
    let before = hub.fetched().len();
    fs::remove_file(folder.join("model-2.safetensors")).unwrap();
    find(&settings).unwrap();
    assert_eq!(hub.fetched()[before..], ["model-2.safetensors@0-".to_owned()]);
}

#[test]
fn a_download_that_breaks_off_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let files = [("config.json", "{}"), ("tokenizer.json", "{}"), ("model.safetensors", "0123456789abcdef")];
    let hub = Hub::start(&files[2..], Manners { hangups: 1, ..Default::default() });
    let settings = settings(&hub, dir.path());
    let id = Id::parse(ID).unwrap();
    let mut sink = |_| {};
    let path = Download::begin(&id, &settings, &mut sink).unwrap().get("model.safetensors").unwrap();
    assert_eq!(fs::read_to_string(path).unwrap(), "0123456789abcdef");
    assert_eq!(hub.fetched(), ["model.safetensors@0-", "model.safetensors@8-"]);
}

#[test]
fn what_an_earlier_run_left_is_used_and_a_damaged_part_is_not() {
    for (left, no_ranges, first, ok) in [
        ("01234", false, "5-", true),
        ("longer than the file ever was", false, "0-", true),
        ("01234", true, "5-", false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let hub = Hub::start(&[("m.gguf", "0123456789abcdef")], Manners { no_ranges, ..Default::default() });
        let settings = settings(&hub, dir.path());
        let blobs = settings.hf_cache.join("models--org--name/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join("etag-of-m.part"), left).unwrap();
        let found = find(&settings);
        assert_eq!(hub.fetched(), [format!("m.gguf@{first}")]);
        match found {
            Ok(ModelFiles::Gguf(path)) if ok => {
                assert_eq!(fs::read_to_string(path).unwrap(), "0123456789abcdef");
            }
            Err(HubError::Refused { .. }) if !ok => {
                // Nothing wrong is left behind: the next try is a whole one.
                assert!(find(&settings).is_ok());
            }
            other => panic!("{left}: {other:?}"),
        }
    }
}

#[test]
fn a_repository_of_gguf_files_gives_the_usual_one_with_all_its_parts() {
    let dir = tempfile::tempdir().unwrap();
    let files = [
        ("m-Q8_0.gguf", "8"),
        ("m-Q4_K_M-00002-of-00002.gguf", "second"),
        ("m-Q4_K_M-00001-of-00002.gguf", "first"),
        ("m-BF16.gguf", "16"),
    ];
    let hub = Hub::start(&files, Manners::default());
    let settings = settings(&hub, dir.path());
    let ModelFiles::Gguf(path) = find(&settings).unwrap() else { panic!("no gguf") };
    assert!(path.ends_with("m-Q4_K_M-00001-of-00002.gguf"), "{path:?}");
    assert!(path.with_file_name("m-Q4_K_M-00002-of-00002.gguf").exists());
    assert_eq!(hub.fetched().len(), 2);
    assert_eq!(find(&HubSettings { offline: true, ..settings }).unwrap(), ModelFiles::Gguf(path));
}

#[test]
fn an_answer_is_told_with_its_mend() {
    let dir = tempfile::tempdir().unwrap();
    let with = |status: u16, token: Option<&str>| {
        let hub = Hub::start(&MODEL, Manners { status: Some(status), ..Default::default() });
        let settings = HubSettings { hf_token: token.map(str::to_owned), ..settings(&hub, dir.path()) };
        find(&settings).unwrap_err().to_string()
    };
    for (status, token, told) in [
        (401, None, "accept its terms on its page and set HF_TOKEN"),
        (401, Some("stale"), "refuses HF_TOKEN"),
        (403, Some("mine"), "is gated: accept its terms"),
        (404, None, "does not exist on the hub"),
        (429, None, "status 429); try again in a while"),
        (503, None, "answered with status 503; try again in a while"),
    ] {
        let err = with(status, token);
        assert!(err.contains(told) && err.contains(ID), "{status}: {err}");
        assert!(!err.contains("connect to the network"), "{status}: {err}");
    }
    let hub = Hub::start(&MODEL, Manners { token: Some("mine"), ..Default::default() });
    let stranger = settings(&hub, dir.path());
    assert!(matches!(find(&stranger), Err(HubError::NeedsLogin { .. })));
    find(&HubSettings { hf_token: Some("mine".into()), ..stranger }).unwrap();
}

#[test]
fn what_a_repository_lacks_is_named() {
    for (without, told) in [
        ("model-2.safetensors", "has no file model-2.safetensors, which its index names"),
        ("config.json", "has no config.json"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let files: Vec<_> = MODEL.into_iter().filter(|(name, _)| *name != without).collect();
        let hub = Hub::start(&files, Manners::default());
        let err = find(&settings(&hub, dir.path())).unwrap_err().to_string();
        assert!(err.contains(told), "{err}");
    }
}

#[test]
fn an_index_cannot_name_a_file_outside() {
    let dir = tempfile::tempdir().unwrap();
    let index = r#"{"weight_map":{"a":"../../../../out.safetensors"}}"#;
    let files = [("config.json", "{}"), ("tokenizer.json", "{}"), ("model.safetensors.index.json", index)];
    let hub = Hub::start(&files, Manners::default());
    let err = find(&settings(&hub, dir.path())).unwrap_err();
    assert!(matches!(err, HubError::Incomplete { .. }), "{err}");
    assert!(!hub.fetched().iter().any(|name| name.contains("out")));
}

#[test]
fn a_cache_that_cannot_be_written_is_not_the_networks_fault() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(&MODEL, Manners::default());
    let settings = settings(&hub, dir.path());
    fs::write(&settings.hf_cache, "a file, where the cache should be").unwrap();
    let err = find(&settings).unwrap_err();
    assert!(matches!(&err, HubError::Io { path, .. } if *path == settings.hf_cache), "{err}");
    assert!(!err.to_string().contains("network"), "{err}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start(&MODEL, Manners::default());
    let settings = settings(&hub, dir.path());
    let blobs = settings.hf_cache.join("models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    std::os::unix::fs::symlink("/dev/full", blobs.join("etag-of-config.part")).unwrap();
    let err = find(&settings).unwrap_err().to_string();
    assert!(err.contains("free space there") && err.contains("HF_HUB_CACHE"), "{err}");
}
