//! Stop strings in text that comes in pieces: held back is only what may still become one.

pub(super) struct StopStrings {
    stops: Vec<String>,
    held: String,
}

impl StopStrings {
    pub(super) fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(), held: String::new() }
    }

    /// The text that can be shown, and the stop string that ends it, which is no part of it.
    pub(super) fn push(&mut self, text: &str) -> (String, Option<String>) {
        if self.stops.is_empty() {
            return (text.to_owned(), None);
        }
        self.held.push_str(text);
        let first =
            self.stops.iter().filter_map(|stop| Some((self.held.find(stop)?, stop))).min_by_key(|m| m.0);
        if let Some((at, stop)) = first {
            let stop = stop.clone();
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), Some(stop));
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// What was held back, when no more text comes.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that begin `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len() - 1);
    (1..=most).rev().find(|&n| text.as_bytes().ends_with(&stop.as_bytes()[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::StopStrings;

    /// The text shown for `pieces`, and the stop string met.
    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<String>) {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut machine = StopStrings::new(&stops);
        let mut shown = Vec::new();
        for piece in pieces {
            let (text, met) = machine.push(piece);
            shown.push(text);
            if met.is_some() {
                return (shown, met);
            }
        }
        shown.push(machine.finish());
        (shown, None)
    }

    #[test]
    fn a_stop_string_across_pieces_ends_the_text_before_it() {
        let (shown, met) = run(&["zzz", "green blue"], &["red", " gr", "een", " bl", "ue", " black"]);
        assert_eq!((shown.concat().as_str(), met.as_deref()), ("red ", Some("green blue")));
        let (shown, met) = run(&["b", "ab"], &["xab"]);
        assert_eq!((shown.concat().as_str(), met.as_deref()), ("x", Some("ab")));
    }

    #[test]
    fn what_does_not_become_one_is_shown() {
        assert_eq!(run(&["END!"], &["the E", "ND of", " it"]).0, ["the ", "END of", " it", ""]);
        assert_eq!(run(&["ééb"], &["é", "é", "é"]).0, ["", "", "é", "éé"]);
        assert_eq!(run(&["aab"], &["a", "a", "a"]).0, ["", "", "a", "aa"]);
        assert_eq!(run(&["", "x"], &["a"]).0, ["a", ""]);
    }
}
