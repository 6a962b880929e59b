//! Lines of text that fit a terminal and cannot command it.

/// The text with everything but printable ASCII replaced: names come from other machines, and a terminal obeys what it
/// is sent.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect()
}

/// Units that stay on the line of their number.
const UNITS: [&str; 14] =
    ["%", "B", "KiB", "MiB", "GiB", "ns", "us", "ms", "s", "Gb/s", "Mmsg/s", "ns/msg", "ppm", "GHz"];

/// Breaks `text` at spaces into lines of at most `width` characters, never between a number and its unit; a longer word has
/// a line to itself. Lines after the first are indented.
pub fn wrap(text: &str, indent: usize, width: Option<usize>) -> String {
    let text = plain(text);
    let mut out = String::new();
    let mut column = 0;
    // Runs of spaces are kept inside a line: they separate the parts of a header.
    for word in unbroken(&text) {
        let visible = word.trim_end().len();
        if column > indent && width.is_some_and(|width| column + visible > width) {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
            if visible == 0 {
                continue;
            }
        }
        out.push_str(word);
        column += word.len();
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// The words of a text with the spaces behind them, a number and its unit being one.
fn unbroken(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut begin = 0;
    let mut rest = text.split_inclusive(' ').peekable();
    let mut end = 0;
    while let Some(word) = rest.next() {
        end += word.len();
        if !rest.peek().is_some_and(|next| is_number(word) && is_unit(next)) {
            words.push(&text[begin..end]);
            begin = end;
        }
    }
    words
}

fn is_number(word: &str) -> bool {
    let number = word.trim_start_matches(['(', '[', '+', '-', 'x']);
    number.starts_with(|c: char| c.is_ascii_digit())
        && number.trim_end().ends_with(|c: char| c.is_ascii_digit())
}

fn is_unit(word: &str) -> bool {
    UNITS.contains(&word.trim_end().trim_end_matches([',', '.', ';', ':', ')', ']']))
}

/// A line that begins with what it is: `warning  core 3 was preempted`.
pub fn labelled(label: &str, text: &str, width: Option<usize>) -> String {
    wrap(&format!("{label}  {text}"), label.len() + 2, width)
}

/// Cells in columns, two spaces apart: those of `words` begin, and all others end, where the others of their column do.
pub fn columns<const N: usize>(lines: &[[String; N]], words: &[usize]) -> String {
    let widths: [usize; N] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].len()).max().unwrap_or(0));
    let line = |cells: &[String; N]| {
        let aligned = cells.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if words.contains(&column) { format!("  {cell:<width$}") } else { format!("  {cell:>width$}") }
        });
        aligned.collect::<String>().trim_end().to_owned() + "\n"
    };
    lines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_break_at_spaces() {
        assert_eq!(wrap("one two three", 2, Some(8)), "one two\n  three\n");
        assert_eq!(wrap("a  b  c", 0, None), "a  b  c\n");
        assert_eq!(wrap("wordlongerthanwidth x", 2, Some(5)), "wordlongerthanwidth\n  x\n");
        assert_eq!(labelled("warning", "core 3 rests", Some(16)), "warning  core 3\n         rests\n");
    }

    #[test]
    fn a_number_and_its_unit_are_not_parted() {
        assert_eq!(wrap("a bound of 5.0 us holds", 0, Some(15)), "a bound of\n5.0 us holds\n");
        assert_eq!(wrap("it rose by (+11.7 %), surely", 0, Some(18)), "it rose by\n(+11.7 %), surely\n");
        assert_eq!(wrap("1 2 us 3 % 4", 0, Some(4)), "1\n2 us\n3 %\n4\n");
        // What only looks like one is two words.
        assert_eq!(wrap("core 3 busy", 0, Some(7)), "core 3\nbusy\n");
        assert_eq!(wrap("of 12345 us", 0, Some(5)), "of\n12345 us\n");
    }

    #[test]
    fn a_terminal_is_not_commanded() {
        assert_eq!(plain("a\x1b[31mb\tc\u{e9}\n"), "a?[31mb?c??");
    }
}
