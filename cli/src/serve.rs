//! `forerun serve`: the HTTP server, with `mlx_lm.server`'s flags.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use engine::LoadOptions;
use engine::hub::{DEFAULT_MODEL, ModelFiles};
use engine::prefix::DiskOptions;
use mlx_core::Dtype;
use serde_json::{Map, Value};
use server::{App, Defaults, Hosts, Model, Settings};

use crate::common::{DtypeArg, WidthArg};
use crate::{common, env};

#[derive(clap::Args)]
pub struct Args {
    /// A folder, a .gguf file, a Hugging Face id (org/name), or smollm2-135m.
    #[arg(long, default_value = DEFAULT_MODEL)]
    model: String,
    /// The address to listen on; 0.0.0.0 is every one of this machine.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// [default: 8080, or that of --compat]
    #[arg(long)]
    port: Option<u16>,
    /// Answers with the defaults of another server.
    #[arg(long, value_enum)]
    compat: Option<Compat>,
    /// Asked of every request but /health, as `Authorization: Bearer …` or `x-api-key` [default: FORERUN_API_KEY]
    #[arg(long)]
    api_key: Option<String>,
    /// Origins of pages that may call the server; `*` allows all.
    #[arg(long, value_delimiter = ',', default_value = "*")]
    allowed_origins: Vec<String>,
    /// Further names by which the server may be called, beside addresses and localhost.
    #[arg(long, value_delimiter = ',')]
    allowed_hosts: Vec<String>,
    /// Further names that the model answers to.
    #[arg(long, value_delimiter = ',')]
    alias: Vec<String>,
    /// Refuse requests that name another model.
    #[arg(long)]
    strict_models: bool,
    /// Requests that run at the same time; others wait.
    #[arg(long, visible_alias = "max-concurrent", default_value_t = 32)]
    decode_concurrency: usize,
    /// Accepted for compatibility: prompts share a step by its tokens.
    #[arg(long, hide = true)]
    prompt_concurrency: Option<usize>,
    /// Requests that may wait; more are answered 503.
    #[arg(long, default_value_t = 1024)]
    max_waiting: usize,
    /// Prompt tokens processed at a time.
    #[arg(long, visible_alias = "prefill-chunk", default_value_t = 2048)]
    prefill_step_size: usize,
    /// 0 takes the most probable token [default: generation_config.json's, else 1]
    #[arg(long, visible_alias = "temperature")]
    temp: Option<f32>,
    /// Sample from the smallest set of tokens with this probability in all.
    #[arg(long)]
    top_p: Option<f32>,
    /// Sample from the k most probable tokens; 0 is off.
    #[arg(long)]
    top_k: Option<usize>,
    /// Drop tokens less probable than this share of the most probable one.
    #[arg(long)]
    min_p: Option<f32>,
    /// Tokens generated where a request names no limit [default: the rest of the context]
    #[arg(long)]
    max_tokens: Option<usize>,
    /// A chat template in place of the model's own: its text, or a file's name.
    #[arg(long)]
    chat_template: Option<String>,
    /// Accepted for compatibility; a model's template is always used where it has one.
    #[arg(long, hide = true)]
    use_default_chat_template: bool,
    /// Variables for the chat template, as a JSON object.
    #[arg(long)]
    chat_template_args: Option<String>,
    /// Bytes of memory for prompts that may come again, such as 2GB; 0 remembers nothing.
    #[arg(long, default_value = "2GB", value_parser = bytes)]
    prompt_cache_bytes: usize,
    /// Accepted for compatibility: prompts are remembered by bytes.
    #[arg(long, hide = true)]
    prompt_cache_size: Option<usize>,
    /// A folder that remembers prompts across restarts.
    #[arg(long)]
    prompt_cache_dir: Option<std::path::PathBuf>,
    /// The most that this folder may hold.
    #[arg(long, default_value = "20GB", value_parser = bytes)]
    prompt_cache_dir_bytes: usize,
    /// Seconds of silence after which a stream is sent a sign of life.
    #[arg(long, default_value_t = 5.0)]
    keep_alive: f64,
    /// Digits of activations in the CPU kernels: 8 is fast, 16 exact enough for equal answers, 24 as float32.
    #[arg(long, value_enum, default_value = "a16")]
    width: WidthArg,
    /// The type of activations [default: float32 on the CPU, the checkpoint's own on a GPU].
    #[arg(long, value_enum)]
    dtype: Option<DtypeArg>,
    /// Threads of the CPU kernels [default: one a core].
    #[arg(long)]
    threads: Option<usize>,
    /// How much is logged: error, warn, info or debug.
    #[arg(long, ignore_case = true, default_value = "info")]
    log_level: tracing::Level,
    #[command(flatten)]
    later: Later,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Compat {
    /// mlx_lm.server: port 8080, temperature 0, 512 tokens.
    MlxLm,
    /// mlx-serve: port 11234.
    MlxServe,
}

/// Flags of `mlx_lm.server` that are refused rather than ignored.
#[derive(clap::Args)]
struct Later {
    #[arg(long, hide = true)]
    adapter_path: Option<String>,
    #[arg(long, hide = true)]
    draft_model: Option<String>,
    #[arg(long, hide = true)]
    num_draft_tokens: Option<usize>,
    #[arg(long, hide = true)]
    trust_remote_code: bool,
    #[arg(long, hide = true)]
    pipeline: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.later.refuse()?;
    let settings = args.settings()?;
    tracing_subscriber::fmt()
        .with_max_level(args.log_level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .init();
    if let Some(threads) = args.threads {
        ensure!(0 < threads, "--threads should be at least 1");
        mlx_core::kernels::set_threads(threads);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("cannot start the server's threads")?;
    let address = args.address()?;
    // The port is taken before the model is loaded, so that a second server fails at once.
    let listener = runtime.block_on(tokio::net::TcpListener::bind(address));
    let listener =
        listener.with_context(|| format!("cannot listen on {address}; is another server there?"))?;
    let files = common::find(&args.model)?;
    let settings = args.with_model(settings, &files)?;
    let loaded = common::load(&args.model, &files, &args.load_options()?)?;
    let app = App::new(Model::new(&args.model, loaded, size(&files)), settings);
    eprintln!("forerun: {} on http://{}", args.model, listener.local_addr()?);
    let served = runtime.block_on(server::serve(listener, app, stopped()));
    served.context("the server ended")?;
    Ok(ExitCode::SUCCESS)
}

/// Ctrl-C, or what service managers send.
async fn stopped() {
    signal().await;
    tracing::info!("ending; once more ends at once");
    tokio::spawn(async {
        signal().await;
        std::process::exit(INTERRUPTED);
    });
}

/// What shells give a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

async fn signal() {
    #[cfg(unix)]
    {
        let terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
        if let Ok(mut terminate) = terminate {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    tokio::signal::ctrl_c().await.ok();
}

impl Args {
    fn address(&self) -> Result<SocketAddr> {
        let default = if self.compat == Some(Compat::MlxServe) { 11234 } else { 8080 };
        let port = self.port.unwrap_or(default);
        let resolved = std::net::ToSocketAddrs::to_socket_addrs(&(self.host.as_str(), port));
        let mut addresses = resolved.with_context(|| format!("--host: `{}` is no address", self.host))?;
        addresses.next().with_context(|| format!("--host: `{}` is no address", self.host))
    }

    fn settings(&self) -> Result<Settings> {
        let share = |name: &str, x: Option<f32>, max: f32| {
            ensure!(x.is_none_or(|x| (0.0..=max).contains(&x)), "{name} should be between 0 and {max}");
            Ok(())
        };
        share("--temp", self.temp, 100.0)?;
        share("--top-p", self.top_p, 1.0)?;
        share("--min-p", self.min_p, 1.0)?;
        ensure!(self.max_tokens != Some(0), "--max-tokens should be at least 1");
        ensure!(0 < self.decode_concurrency, "--decode-concurrency should be at least 1");
        ensure!(
            0.01 <= self.keep_alive && self.keep_alive <= 3600.0,
            "--keep-alive should be 0.01 to 3600 seconds"
        );
        let loopback = self.host.parse::<IpAddr>().map_or(self.host == "localhost", |ip| ip.is_loopback());
        let hosts = match loopback || !self.allowed_hosts.is_empty() {
            true => Hosts::Local(self.allowed_hosts.clone()),
            false => Hosts::Any,
        };
        Ok(Settings {
            api_key: self.api_key.clone().or_else(env::api_key).filter(|key| !key.is_empty()),
            allowed_origins: self.allowed_origins.clone(),
            hosts,
            strict_models: self.strict_models,
            aliases: self.alias.clone(),
            defaults: self.defaults()?,
            keep_alive: Duration::from_secs_f64(self.keep_alive),
        })
    }

    fn defaults(&self) -> Result<Defaults> {
        let template_kwargs = match &self.chat_template_args {
            Some(json) => {
                serde_json::from_str(json).context("--chat-template-args should be a JSON object")?
            }
            None => Map::new(),
        };
        let mlx_lm = self.compat == Some(Compat::MlxLm);
        Ok(Defaults {
            max_tokens: self.max_tokens.or(mlx_lm.then_some(512)),
            template_kwargs,
            ..Defaults::default()
        })
    }

    /// Flags over the model's own over ours.
    fn with_model(&self, mut settings: Settings, files: &ModelFiles) -> Result<Settings> {
        let own = match (files, self.compat) {
            (_, Some(Compat::MlxLm)) | (ModelFiles::Gguf(_), _) => Value::Null,
            (ModelFiles::Folder(folder), _) => generation_config(folder)?,
        };
        let number = |name: &str| own.get(name).and_then(Value::as_f64).map(|x| x as f32);
        let defaults = &mut settings.defaults;
        let temperature = if self.compat == Some(Compat::MlxLm) { 0.0 } else { defaults.temperature };
        defaults.temperature = self.temp.or(number("temperature")).unwrap_or(temperature);
        // A config that says not to sample means the most probable token, whatever else it holds.
        if self.temp.is_none() && own.get("do_sample").and_then(Value::as_bool) == Some(false) {
            defaults.temperature = 0.0;
        }
        defaults.top_p = self.top_p.or(number("top_p")).unwrap_or(defaults.top_p);
        defaults.min_p = self.min_p.or(number("min_p")).unwrap_or(defaults.min_p);
        defaults.top_k = self.top_k.or(number("top_k").map(|k| k as usize)).unwrap_or(defaults.top_k);
        defaults.repetition_penalty = number("repetition_penalty").unwrap_or(defaults.repetition_penalty);
        Ok(settings)
    }

    fn load_options(&self) -> Result<LoadOptions> {
        ensure!(0 < self.prefill_step_size, "--prefill-step-size should be at least 1");
        let mut options = LoadOptions {
            width: self.width.into(),
            dtype: self.dtype.map(Dtype::from),
            chat_template: self.chat_template.as_deref().map(template).transpose()?,
            ..Default::default()
        };
        let limits = &mut options.engine.limits;
        limits.step_tokens = self.prefill_step_size;
        limits.max_running = self.decode_concurrency;
        limits.max_waiting = self.max_waiting;
        options.engine.prefix.ram_bytes = self.prompt_cache_bytes;
        options.engine.prefix.disk = self
            .prompt_cache_dir
            .clone()
            .map(|folder| DiskOptions { folder, max_bytes: self.prompt_cache_dir_bytes as u64 });
        Ok(options)
    }
}

impl Later {
    fn refuse(&self) -> Result<()> {
        let given = [
            ("--adapter-path", self.adapter_path.is_some()),
            ("--draft-model", self.draft_model.is_some()),
            ("--num-draft-tokens", self.num_draft_tokens.is_some()),
            ("--trust-remote-code", self.trust_remote_code),
            ("--pipeline", self.pipeline),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => bail!("{flag} is not supported; leave it out"),
            None => Ok(()),
        }
    }
}

/// The template itself, or the file that holds it.
fn template(given: &str) -> Result<String> {
    match given.contains(['{', '\n']) {
        true => Ok(given.to_owned()),
        false => {
            std::fs::read_to_string(given).with_context(|| format!("--chat-template: cannot read {given}"))
        }
    }
}

fn generation_config(folder: &Path) -> Result<Value> {
    let path = folder.join("generation_config.json");
    match std::fs::read(&path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).with_context(|| format!("{} is not JSON", path.display()))
        }
        Err(_) => Ok(Value::Null),
    }
}

fn size(files: &ModelFiles) -> u64 {
    let of = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    match files {
        ModelFiles::Gguf(path) => of(path),
        ModelFiles::Folder(folder) => {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| of(&entry.path())).sum()
        }
    }
}

/// `2GB`, `500MB`, `1.5G`, or a plain number of bytes.
fn bytes(text: &str) -> Result<usize, String> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match lower[digits.len()..].trim_end_matches('b').trim_end_matches('i') {
        "" => 1.0,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        "t" => 1e12,
        _ => return Err(format!("`{text}` is no size; write 2GB, 500MB or a number of bytes")),
    };
    match digits.trim().parse::<f64>() {
        Ok(number) if 0.0 <= number && number.is_finite() => Ok((number * unit) as usize),
        _ => Err(format!("`{text}` is no size; write 2GB, 500MB or a number of bytes")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_have_units() {
        let size = super::bytes;
        assert_eq!(
            [size("2GB"), size("1.5g"), size("12"), size("3 kib"), size("0")].map(Result::unwrap),
            [2_000_000_000, 1_500_000_000, 12, 3000, 0]
        );
        for wrong in ["", "GB", "2 dozen", "-1"] {
            assert!(size(wrong).unwrap_err().contains(wrong));
        }
    }
}
