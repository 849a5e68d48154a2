//! `forerun generate`: one prompt, one answer, with `mlx_lm.generate`'s flags and output.

use std::io::{self, IsTerminal, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::ArgAction;
use engine::hub::DEFAULT_MODEL;
use engine::protocol::{Event, Finish, FinishReason, Request, SamplingParams, TokenId};
use engine::text::ChatInput;
use engine::{LoadOptions, Loaded};
use mlx_core::Dtype;
use serde_json::{Map, Value, json};

use crate::common;
use crate::common::{DtypeArg, WidthArg};

#[derive(clap::Args)]
pub struct Args {
    /// A folder, a .gguf file, a Hugging Face id (org/name), or smollm2-135m.
    #[arg(long, default_value = DEFAULT_MODEL)]
    model: String,
    /// The prompt; `\n` and `\t` are unescaped, `-` reads standard input.
    #[arg(long, short, default_value = "hello", allow_hyphen_values = true)]
    prompt: String,
    /// A system message, where a chat template is used.
    #[arg(long)]
    system_prompt: Option<String>,
    /// The beginning of the answer, for the model to go on.
    #[arg(long)]
    prefill_response: Option<String>,
    /// Tokens to generate at most; -1 goes on to the end of the context.
    #[arg(long, short, default_value_t = 100, allow_negative_numbers = true)]
    max_tokens: i64,
    /// 0 takes the most probable token.
    #[arg(long, visible_alias = "temperature", default_value_t = 0.0)]
    temp: f32,
    /// Sample from the smallest set of tokens with this probability in all.
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Drop tokens less probable than this share of the most probable one.
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// Sample from the k most probable tokens; 0 is off.
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Probability with which the most probable tokens are excluded.
    #[arg(long, default_value_t = 0.0)]
    xtc_probability: f32,
    /// Tokens above this probability may be excluded, all but the least.
    #[arg(long, default_value_t = 0.1)]
    xtc_threshold: f32,
    /// Tokens that --min-p always keeps.
    #[arg(long, default_value_t = 1)]
    min_tokens_to_keep: usize,
    /// Makes sampling repeat itself; without it every run differs.
    #[arg(long)]
    seed: Option<u64>,
    /// Further tokens that end the answer: a text or an id each.
    #[arg(long, num_args = 1..)]
    extra_eos_token: Vec<String>,
    /// Send the prompt as it is.
    #[arg(long)]
    ignore_chat_template: bool,
    /// Accepted for compatibility; a model's template is always used where it has one.
    #[arg(long, hide = true)]
    use_default_chat_template: bool,
    /// Variables for the chat template, as a JSON object.
    #[arg(long)]
    chat_template_config: Option<String>,
    /// Print the answer as it comes, and how fast it went; `false` prints the answer only.
    #[arg(long, default_value = "true", action = ArgAction::Set, value_parser = str2bool)]
    verbose: bool,
    /// Prompt tokens processed at a time.
    #[arg(long, default_value_t = 2048)]
    prefill_step_size: usize,
    /// Digits of activations in the CPU kernels: 8 is fast, 16 exact enough for equal answers, 24 as float32.
    #[arg(long, value_enum, default_value = "a16")]
    width: WidthArg,
    /// The type of activations [default: float32 on the CPU, the checkpoint's own on a GPU].
    #[arg(long, value_enum)]
    dtype: Option<DtypeArg>,
    /// Threads of the CPU kernels [default: one a core].
    #[arg(long)]
    threads: Option<usize>,
    #[command(flatten)]
    later: Later,
}

/// Flags of `mlx_lm.generate` that are refused rather than ignored.
#[derive(clap::Args)]
struct Later {
    #[arg(long, hide = true)]
    adapter_path: Option<String>,
    #[arg(long, hide = true)]
    draft_model: Option<String>,
    #[arg(long, hide = true)]
    num_draft_tokens: Option<usize>,
    #[arg(long, hide = true)]
    prompt_cache_file: Option<String>,
    #[arg(long, hide = true)]
    max_kv_size: Option<usize>,
    #[arg(long, hide = true)]
    kv_bits: Option<usize>,
    #[arg(long, hide = true)]
    kv_group_size: Option<usize>,
    #[arg(long, hide = true)]
    quantized_kv_start: Option<usize>,
    #[arg(long, short = 'q', hide = true)]
    quantize_activations: bool,
    #[arg(long, hide = true)]
    trust_remote_code: bool,
    #[arg(long, hide = true, num_args = 1..)]
    image: Vec<String>,
}

/// argparse's habit in mlx-lm: everything is true but `false` and `f`.
fn str2bool(text: &str) -> Result<bool, std::convert::Infallible> {
    Ok(!matches!(text.to_lowercase().as_str(), "false" | "f"))
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.later.refuse()?;
    let sampling = args.sampling()?;
    let kwargs = template_kwargs(args.chat_template_config.as_deref())?;
    let prompt = read_prompt(&args.prompt)?;
    let stop = interruptible()?;
    if let Some(threads) = args.threads {
        ensure!(0 < threads, "--threads should be at least 1");
        mlx_core::kernels::set_threads(threads);
    }

    let model = load(&args)?;
    let request = args.request(&model, &prompt, kwargs, sampling)?;
    let detokenizer = model.tokenizer.detokenizer(false);
    let mut out = Output { verbose: args.verbose, text: String::new() };
    out.rule()?;
    let outcome = answer(&model, request, detokenizer, &stop, &mut out)?;
    match outcome {
        Some(finish) => out.finish(&finish)?,
        None => out.line("")?,
    }
    Ok(if stop.load(Ordering::Relaxed) { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// What shells give a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// The first Ctrl-C ends the answer, the second the program.
fn interruptible() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED.into());
        }
    })
    .context("cannot listen for Ctrl-C")?;
    Ok(stop)
}

fn load(args: &Args) -> Result<Loaded> {
    let files = common::find(&args.model)?;
    let mut options =
        LoadOptions { width: args.width.into(), dtype: args.dtype.map(Dtype::from), ..Default::default() };
    ensure!(0 < args.prefill_step_size, "--prefill-step-size should be at least 1");
    options.engine.limits.step_tokens = args.prefill_step_size;
    common::load(&args.model, &files, &options)
}

/// Streams the answer. `None` if Ctrl-C came before the first token.
fn answer(
    model: &Loaded,
    request: Request,
    mut detokenizer: engine::text::Detokenizer<Arc<engine::text::Tokenizer>>,
    stop: &AtomicBool,
    out: &mut Output,
) -> Result<Option<Finish>> {
    let stop_ids = request.stop_ids.clone();
    let prompt_tokens = request.prompt.len();
    let started = std::time::Instant::now();
    let mut first = None;
    let mut generated = 0;
    let stream = model.engine.submit(request);
    let finish = loop {
        if stop.load(Ordering::Relaxed) {
            let Some(first) = first else { return Ok(None) };
            break Finish {
                reason: FinishReason::Stop,
                prompt_tokens,
                cached_tokens: 0,
                generated_tokens: generated,
                prompt_time: first - started,
                generation_time: std::time::Instant::elapsed(&first),
            };
        }
        match stream.next_within(Duration::from_millis(50)) {
            None | Some(Event::Prefill { .. }) => {}
            Some(Event::Token { id, .. }) => {
                first.get_or_insert_with(std::time::Instant::now);
                generated += 1;
                if !stop_ids.contains(&id) {
                    out.piece(&detokenizer.push(id))?;
                }
            }
            Some(Event::Finished(finish)) => break finish,
            Some(Event::Failed(message)) => bail!(message),
        }
    };
    out.piece(&detokenizer.finish())?;
    Ok(Some(finish))
}

impl Args {
    fn sampling(&self) -> Result<SamplingParams> {
        ensure!(self.temp.is_finite() && 0.0 <= self.temp, "--temp should be 0 or more, not {}", self.temp);
        let share = |name: &str, x: f32, max: f32| {
            ensure!((0.0..=max).contains(&x), "{name} should be between 0 and {max}, not {x}");
            Ok(())
        };
        share("--top-p", self.top_p, 1.0)?;
        share("--min-p", self.min_p, 1.0)?;
        share("--xtc-probability", self.xtc_probability, 1.0)?;
        share("--xtc-threshold", self.xtc_threshold, 0.5)?;
        ensure!(self.max_tokens == -1 || 0 < self.max_tokens, "--max-tokens should be at least 1, or -1");
        Ok(SamplingParams {
            temperature: self.temp,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            min_tokens_to_keep: self.min_tokens_to_keep,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            seed: self.seed.unwrap_or_else(fresh_seed),
            ..Default::default()
        })
    }

    fn request(
        &self,
        model: &Loaded,
        prompt: &str,
        kwargs: Map<String, Value>,
        mut sampling: SamplingParams,
    ) -> Result<Request> {
        let tokenizer = &model.tokenizer;
        let prompt = if self.ignore_chat_template || !model.templates.exist() {
            ensure!(self.prefill_response.is_none(), "--prefill-response needs a chat template");
            ensure!(self.system_prompt.is_none(), "--system-prompt needs a chat template");
            tokenizer.encode(prompt, true)?
        } else {
            let text = model.templates.render(&self.chat(prompt, kwargs))?;
            tokenizer.encode(&text, false)?
        };
        let mut stop_ids: Vec<TokenId> = tokenizer.ends().iter().copied().collect();
        for token in &self.extra_eos_token {
            let single = || match tokenizer.encode(token, false).as_deref() {
                Ok([id]) => Some(*id),
                _ => None,
            };
            let id = token.parse().ok().or_else(|| tokenizer.token_id(token)).or_else(single);
            stop_ids.push(id.ok_or_else(|| anyhow!("--extra-eos-token: the vocabulary has no `{token}`"))?);
        }
        sampling.xtc_special_tokens = tokenizer.encode("\n", false)?;
        sampling.xtc_special_tokens.extend(&stop_ids);
        let max_tokens = usize::try_from(self.max_tokens).ok();
        Ok(Request { prompt, max_tokens, stop_ids, sampling, ..Request::default() })
    }

    fn chat(&self, prompt: &str, kwargs: Map<String, Value>) -> ChatInput {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let mut messages = Vec::new();
        messages.extend(self.system_prompt.as_deref().map(|text| message("system", text)));
        messages.push(message("user", prompt));
        messages.extend(self.prefill_response.as_deref().map(|text| message("assistant", text)));
        let prefilled = self.prefill_response.is_some();
        ChatInput {
            messages,
            add_generation_prompt: !prefilled,
            continue_final_message: prefilled,
            kwargs,
            now: chrono::Local::now().naive_local(),
            ..Default::default()
        }
    }
}

impl Later {
    fn refuse(&self) -> Result<()> {
        let given = [
            ("--adapter-path", self.adapter_path.is_some()),
            ("--draft-model", self.draft_model.is_some()),
            ("--num-draft-tokens", self.num_draft_tokens.is_some()),
            ("--prompt-cache-file", self.prompt_cache_file.is_some()),
            ("--max-kv-size", self.max_kv_size.is_some()),
            ("--kv-bits", self.kv_bits.is_some()),
            ("--kv-group-size", self.kv_group_size.is_some()),
            ("--quantized-kv-start", self.quantized_kv_start.is_some()),
            ("--quantize-activations", self.quantize_activations),
            ("--trust-remote-code", self.trust_remote_code),
            ("--image", !self.image.is_empty()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => bail!("{flag} is not supported; leave it out"),
            None => Ok(()),
        }
    }
}

fn template_kwargs(json: Option<&str>) -> Result<Map<String, Value>> {
    let Some(json) = json else { return Ok(Map::new()) };
    serde_json::from_str(json).context("--chat-template-config should be a JSON object")
}

fn read_prompt(prompt: &str) -> Result<String> {
    if prompt != "-" {
        return Ok(prompt.replace("\\n", "\n").replace("\\t", "\t"));
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).context("cannot read the prompt from standard input")?;
    Ok(text)
}

/// Differs in every run.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

struct Output {
    verbose: bool,
    text: String,
}

impl Output {
    fn rule(&self) -> Result<()> {
        if self.verbose { self.line("==========") } else { Ok(()) }
    }

    fn line(&self, text: &str) -> Result<()> {
        self.write(&format!("{text}\n"))
    }

    fn piece(&mut self, text: &str) -> Result<()> {
        self.text.push_str(text);
        if self.verbose { self.write(text) } else { Ok(()) }
    }

    fn finish(&self, finish: &Finish) -> Result<()> {
        if !self.verbose {
            return self.line(&self.text);
        }
        self.line("")?;
        self.rule()?;
        if self.text.is_empty() {
            return self.line("No text generated for this prompt");
        }
        let rate = |n: usize, time: Duration| n as f64 / time.as_secs_f64().max(1e-9);
        let (prompt, generated) = (finish.prompt_tokens, finish.generated_tokens);
        let prompt_rate = rate(prompt, finish.prompt_time);
        let rate = rate(generated, finish.generation_time);
        self.line(&format!("Prompt: {prompt} tokens, {prompt_rate:.3} tokens-per-sec"))?;
        self.line(&format!("Generation: {generated} tokens, {rate:.3} tokens-per-sec"))?;
        self.line(&format!("Peak memory: {:.3} GB", mlx_core::memory::peak() as f64 / 1e9))
    }

    fn write(&self, text: &str) -> Result<()> {
        let mut stdout = io::stdout().lock();
        let written =
            stdout.write_all(text.as_bytes()).and_then(|()| match stdout.is_terminal() || self.verbose {
                true => stdout.flush(),
                false => Ok(()),
            });
        Ok(written?)
    }
}

#[cfg(test)]
mod tests;
