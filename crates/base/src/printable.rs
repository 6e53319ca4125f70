//! Makes text of other users safe for a terminal.

use std::borrow::Cow;

/// Escapes everything in `text` that a terminal would interpret: control characters (`\u{1b}` begins the
/// sequences that move the cursor, rename the window, and worse), and the marks that change the direction of
/// writing. Letters of all scripts stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(acts_on_terminals) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if acts_on_terminals(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// Returns true for Unicode's general category Cc, for the separators of lines and paragraphs, and for
/// characters with the property `Bidi_Control` (UAX #9, section 2).
fn acts_on_terminals(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_terminal_obeys_is_escaped() {
        for plain in ["", "node 3: 'a b' \\ \"c\"", "広場 – Größe, naïve, שלום, 🙂"] {
            assert!(matches!(printable(plain), Cow::Borrowed(same) if same == plain), "{plain}");
        }
        for (text, shown) in [
            ("h\x1b[31m1", "h\\u{1b}[31m1"),
            ("\x1b]0;owned\x07", "\\u{1b}]0;owned\\u{7}"),
            ("one\ntwo\r\t\x08\0", "one\\ntwo\\r\\t\\u{8}\\u{0}"),
            ("\u{9b}2J\x7f", "\\u{9b}2J\\u{7f}"),
            ("gpj.\u{202e}exe\u{2066}", "gpj.\\u{202e}exe\\u{2066}"),
        ] {
            assert_eq!(printable(text), shown);
        }
        let every: String = (0..=0x10_ffff).filter_map(char::from_u32).collect();
        assert!(!printable(&every).chars().any(char::is_control));
    }
}
