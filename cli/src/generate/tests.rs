use clap::Parser;

use super::*;

#[derive(Parser)]
struct Wrapper {
    #[command(flatten)]
    args: Args,
}

fn parse(flags: &[&str]) -> Args {
    Wrapper::try_parse_from(["generate"].iter().chain(flags)).unwrap_or_else(|err| panic!("{err}")).args
}

#[test]
fn the_defaults_are_mlx_lms() {
    let args = parse(&[]);
    assert_eq!((args.prompt.as_str(), args.max_tokens, args.prefill_step_size), ("hello", 100, 2048));
    assert!(args.verbose && args.seed.is_none());
    let seed = args.sampling().unwrap().seed;
    let want = SamplingParams { seed, ..Default::default() };
    assert_eq!(args.sampling().map(|s| SamplingParams { seed, ..s }).unwrap(), want);
}

#[test]
fn flags_are_spelt_as_in_mlx_lm() {
    let args =
        parse(&["-p", "-", "-m", "-1", "--temp", "0.5", "--verbose", "False", "--extra-eos-token", "a", "7"]);
    assert_eq!((args.prompt.as_str(), args.max_tokens, args.verbose), ("-", -1, false));
    assert_eq!(args.extra_eos_token, ["a", "7"]);
    assert!(parse(&["--verbose", "no"]).verbose, "mlx-lm takes every other word for true");
}

#[test]
fn values_out_of_range_and_missing_features_are_refused() {
    for flags in [["--top-p", "1.5"], ["--temp", "-1"], ["--max-tokens", "0"], ["--xtc-threshold", "0.6"]] {
        let flags = [format!("{}={}", flags[0], flags[1])];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        assert!(parse(&flags).sampling().is_err(), "{flags:?}");
    }
    assert!(parse(&["--kv-bits", "4"]).later.refuse().unwrap_err().to_string().contains("--kv-bits"));
}

#[test]
fn escapes_in_a_prompt_are_undone() {
    assert_eq!(read_prompt("a\\nb\\tc").unwrap(), "a\nb\tc");
}
