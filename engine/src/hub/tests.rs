use super::*;

fn settings(root: &Path) -> HubSettings {
    HubSettings {
        cache: root.join("cache"),
        hf_cache: root.join("hf"),
        // Nothing listens there: a request fails at once.
        hf_endpoint: Some("http://127.0.0.1:9".into()),
        ..Default::default()
    }
}

fn find(name: &str, settings: &HubSettings) -> Result<ModelFiles> {
    resolve(name, settings, &mut |_| {})
}

#[test]
fn folders_and_files_are_used_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let (s, name) = (settings(dir.path()), dir.path().to_str().unwrap());
    assert!(matches!(find(name, &s), Err(HubError::NotAModel(_))));
    let gguf = dir.path().join("m-00001-of-00002.gguf");
    std::fs::write(&gguf, "").unwrap();
    std::fs::write(dir.path().join("m-00002-of-00002.gguf"), "").unwrap();
    assert_eq!(find(name, &s).unwrap(), ModelFiles::Gguf(gguf.clone()));
    assert_eq!(find(gguf.to_str().unwrap(), &s).unwrap(), ModelFiles::Gguf(gguf));
    std::fs::write(dir.path().join("other.gguf"), "").unwrap();
    assert!(matches!(find(name, &s), Err(HubError::SeveralGguf { count: 2, .. })));
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    assert_eq!(find(name, &s).unwrap(), ModelFiles::Folder(dir.path().into()));
}

#[test]
fn names_that_cannot_be_models_say_what_can() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["nonsense", "a/b/c", "../x/y", "a/", ""] {
        let err = find(name, &settings(dir.path())).unwrap_err();
        assert!(matches!(err, HubError::Unknown(_)), "{name}: {err}");
    }
}

#[test]
fn a_complete_snapshot_needs_no_network_and_an_incomplete_one_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let s = settings(dir.path());
    let repo = dir.path().join("hf/models--org--name");
    let snapshot = repo.join("snapshots/abc");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(repo.join("refs")).unwrap();
    std::fs::write(repo.join("refs/main"), "abc").unwrap();
    let put = |name: &str, text: &str| std::fs::write(snapshot.join(name), text).unwrap();
    put("config.json", "{}");
    put("tokenizer.json", "{}");
    put(
        "model.safetensors.index.json",
        r#"{"weight_map":{"x":"model-1.safetensors","y":"model-2.safetensors"}}"#,
    );
    put("model-1.safetensors", "");
    let err = find("org/name", &s).unwrap_err();
    assert!(matches!(err, HubError::Offline { .. }), "{err}");
    let offline = HubSettings { offline: true, ..s.clone() };
    assert!(find("org/name", &offline).unwrap_err().to_string().contains("HF_HUB_OFFLINE"));
    put("model-2.safetensors", "");
    assert_eq!(find("org/name", &s).unwrap(), ModelFiles::Folder(snapshot));
}
