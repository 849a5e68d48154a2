//! `forerun`: argv and environment become values here, and errors become exit codes.

mod common;
mod env;
mod generate;
mod progress;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "forerun",
    about = "Runs language models on this machine",
    disable_version_flag = true,
    arg_required_else_help = true,
    after_help = "Examples:\n  forerun generate --prompt \"What is the capital of France?\"\n  \
                  forerun generate --model ./my-model -p \"Write a haiku\" --temp 0.8\n\n\
                  Without --model, SmolLM2-135M-Instruct is fetched once and kept."
)]
struct Cli {
    /// Print the versions of forerun, MLX and mlx-c, and the backend.
    #[arg(long, short = 'V')]
    version: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Answer one prompt and print how fast it went.
    Generate(Box<generate::Args>),
    /// Serve the OpenAI, Anthropic and Ollama APIs over HTTP.
    Serve(Box<serve::Args>),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.version {
        println!("{}", version());
        return ExitCode::SUCCESS;
    }
    let outcome = match cli.command {
        Some(Command::Generate(args)) => generate::run(*args),
        Some(Command::Serve(args)) => serve::run(*args),
        None => Err(anyhow::anyhow!("no command given; see `forerun --help`")),
    };
    outcome.unwrap_or_else(|err| {
        // A reader that went away, as `head` does, ends the program without a word.
        let io = err.downcast_ref::<std::io::Error>();
        if io.is_some_and(|err| err.kind() == std::io::ErrorKind::BrokenPipe) {
            return ExitCode::SUCCESS;
        }
        eprintln!("forerun: {err:#}");
        ExitCode::FAILURE
    })
}

fn version() -> String {
    let (mlx, mlx_c) = mlx_core::versions();
    let backend = match mlx_core::Device::default_device() {
        mlx_core::Device::Cpu => "cpu",
        mlx_core::Device::Gpu => "gpu",
    };
    format!("forerun {}\nMLX {mlx}\nmlx-c {mlx_c}\nbackend {backend}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_flags_do_not_contradict_each_other() {
        super::Cli::command().debug_assert();
    }
}
