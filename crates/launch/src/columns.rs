//! Fits reports to the width of the terminal, or to [`COLUMNS`] columns without one, without breaking words.

use crate::progress::terminal_columns;

/// The width if standard output is no terminal, or one that does not know its width.
pub const COLUMNS: usize = 80;
/// The least width that is still readable.
const COLUMNS_MIN: usize = 40;

/// Returns the width of standard output in columns.
pub fn of_standard_output() -> usize {
    terminal_columns(std::io::stdout()).unwrap_or(COLUMNS).max(COLUMNS_MIN)
}

/// Breaks a text into lines of at most `columns` columns. A longer word, such as a path, gets a line of its
/// own.
pub fn broken(words: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        let length = word.chars().count();
        match lines.last_mut().filter(|line| line.chars().count() + 1 + length <= columns) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Breaks the long lines of a text. A continuation is indented to the last column of the line: the place in
/// its left half where two or more blanks stood last.
pub fn fold(text: &str, columns: usize) -> String {
    let mut folded = String::new();
    for line in text.lines() {
        if line.chars().count() <= columns {
            folded.push_str(line);
        } else {
            fold_line(&mut folded, line, columns);
        }
        folded.push('\n');
    }
    folded
}

fn fold_line(folded: &mut String, line: &str, columns: usize) {
    let letters: Vec<char> = line.chars().collect();
    let begins_column = |at: &usize| letters[at - 2..*at] == [' ', ' '] && letters[*at] != ' ';
    let column = (2..letters.len().min(columns / 2 + 1)).rev().find(begins_column).unwrap_or(0);
    folded.extend(&letters[..column]);
    let words: String = letters[column..].iter().collect();
    folded.push_str(&broken(&words, columns - column).join(&format!("\n{}", " ".repeat(column))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_whole() {
        assert_eq!(broken("one two  three", 7), ["one two", "three"]);
        assert_eq!(broken("a /very/long/path b", 6), ["a", "/very/long/path", "b"]);
        assert_eq!(broken("", 6), [""; 0]);
    }

    #[test]
    fn long_lines_go_on_in_their_column() {
        let text = "short\n  good  memory  there is enough of it\n\nplain words of a long sentence\n";
        assert_eq!(
            fold(text, 34),
            "\
short
  good  memory  there is enough of
                it

plain words of a long sentence
"
        );
        assert_eq!(fold(text, 100), text);
        let narrow = fold(text, 28);
        assert_eq!(
            narrow.split_whitespace().collect::<Vec<_>>(),
            text.split_whitespace().collect::<Vec<_>>()
        );
        assert!(narrow.lines().all(|line| line.len() <= 28), "{narrow}");
        assert_eq!(fold("plain words of a long sentence", 22), "plain words of a long\nsentence\n");
    }
}
