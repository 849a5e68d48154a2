//! The program as people run it: output, messages and exit codes.

#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that fails")]

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::json;

fn forerun(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
    command.args(args).stdin(Stdio::null());
    // Nothing here may reach a hub.
    command.env("HF_ENDPOINT", "http://127.0.0.1:9").env_remove("HF_HUB_OFFLINE");
    command
}

fn run(args: &[&str]) -> Output {
    forerun(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Exit code 1 and one line that holds all of `parts`.
#[track_caller]
fn fails(args: &[&str], parts: &[&str]) {
    let output = run(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{args:?}: {stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{args:?}: {stderr} lacks {part}");
    }
}

const FRANCE: &str = "What is the capital of France?";

#[test]
fn the_default_model_answers_in_mlx_lms_form() {
    let output = run(&["generate", "--prompt", FRANCE]);
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(&lines[..3], ["==========", "The capital of France is Paris.", "=========="]);
    assert!(lines[3].starts_with("Prompt: 37 tokens, ") && lines[3].ends_with(" tokens-per-sec"), "{text}");
    assert!(
        lines[4].starts_with("Generation: 8 tokens, ") && lines[4].ends_with(" tokens-per-sec"),
        "{text}"
    );
    assert!(lines[5].starts_with("Peak memory: ") && lines[5].ends_with(" GB"), "{text}");
    assert!(output.stderr.is_empty(), "standard error is for messages: {:?}", output.stderr);
}

#[test]
fn quiet_prints_the_answer_only_and_standard_input_is_a_prompt() {
    let mut child = forerun(&["generate", "-p", "-", "--verbose", "false"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(FRANCE.as_bytes()).unwrap();
    assert_eq!(stdout(&child.wait_with_output().unwrap()), "The capital of France is Paris.\n");
}

#[test]
fn flags_reach_the_answer() {
    let quiet = |args: &[&str]| stdout(&run(&[&["generate", "--verbose", "f", "-p", FRANCE], args].concat()));
    assert_eq!(quiet(&["-m", "3"]), "The capital of\n");
    assert_eq!(quiet(&["--extra-eos-token", " France"]), "The capital of\n");
    assert_eq!(quiet(&["--prefill-response", "The capital of France is"]), " Paris.\n");
    let sampled = |seed: &str| quiet(&["--temp", "1.5", "--seed", seed, "-m", "12"]);
    assert_eq!(sampled("1"), sampled("1"));
    assert_ne!(sampled("1"), sampled("2"));
    assert_eq!(quiet(&["--prefill-step-size", "5"]), "The capital of France is Paris.\n");
    assert_eq!(quiet(&["--threads", "1"]), "The capital of France is Paris.\n");
}

#[test]
fn models_that_are_not_there_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let model = |name: &str, parts: &[&str]| fails(&["generate", "--model", name], parts);
    model("nonsense", &["`nonsense`", "smollm2-135m"]);
    model(path, &["config.json"]);
    model("org/not-here", &["org/not-here", "network"]);
    let config = |model_type: &str| {
        std::fs::write(dir.path().join("config.json"), json!({"model_type": model_type}).to_string())
            .unwrap();
    };
    config("rwkv9");
    model(path, &["rwkv9", "llama"]);
    config("llama");
    model(path, &["safetensors"]);
    std::fs::write(dir.path().join("model.safetensors"), b"short").unwrap();
    model(path, &["model.safetensors", "damaged"]);
    std::fs::write(dir.path().join("config.json"), "{").unwrap();
    model(path, &["config.json"]);
    let gguf = dir.path().join("x.gguf");
    std::fs::write(&gguf, b"GGUF").unwrap();
    model(gguf.to_str().unwrap(), &["x.gguf", "ends inside"]);
}

fn empty_safetensors() -> Vec<u8> {
    let mut file = 8u64.to_le_bytes().to_vec();
    file.extend(b"{}      ");
    file
}

#[test]
fn a_checkpoint_and_its_config_must_agree() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let mut config = json!({
        "model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
    });
    write("config.json", &config.to_string());
    write("tokenizer.json", "{}");
    std::fs::write(dir.path().join("model.safetensors"), empty_safetensors()).unwrap();
    fails(&["generate", "--model", path], &["tokenizer.json"]);
    std::fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    fails(&["generate", "--model", path], &["tokenizer.json"]);
    config["quantization_config"] = json!({"quant_method": "awq"});
    write("config.json", &config.to_string());
    fails(&["generate", "--model", path], &["awq"]);
    write("model.safetensors.index.json", &json!({"weight_map": {"x": "model-2.safetensors"}}).to_string());
    fails(&["generate", "--model", path], &["model-2.safetensors"]);
}

#[test]
fn values_that_cannot_be_are_refused() {
    fails(&["generate", "--top-p", "2"], &["--top-p"]);
    fails(&["generate", "--max-tokens", "0"], &["--max-tokens"]);
    fails(&["generate", "--kv-bits", "4"], &["--kv-bits"]);
    fails(&["generate", "--chat-template-config", "[1]"], &["--chat-template-config"]);
    fails(&["generate", "--extra-eos-token", "no such token at all"], &["no such token at all"]);
    for args in [&["generate", "--no-such-flag"][..], &["no-such-command"], &[]] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_prompt_past_the_context_names_both_numbers() {
    let mut child = forerun(&["generate", "-p", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all("word ".repeat(9000).as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("9030") || stderr.contains("9031"), "{stderr}");
    assert!(stderr.contains("8192"), "{stderr}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child =
        forerun(&["generate", "-m", "40"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 4];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn the_version_names_what_computes() {
    let text = stdout(&run(&["--version"]));
    for part in ["forerun ", "MLX 0.32.4", "mlx-c 0.7.0", "backend "] {
        assert!(text.contains(part), "{text}");
    }
}

/// Ctrl-C ends the answer, and the figures so far are printed.
#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_answer_cleanly() {
    let mut child = forerun(&["generate", "-p", "Count to one thousand.", "-m", "4000", "--temp", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut first = [0; 24];
    out.read_exact(&mut first).unwrap();
    assert!(Path::new("/proc").exists() || cfg!(target_os = "macos"));
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(rest.contains("Generation: "), "{rest}");
}
