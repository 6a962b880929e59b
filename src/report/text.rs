//! Lines of text that fit a terminal and cannot command it.

/// The text with everything but printable ASCII replaced: names come from other machines, and a terminal obeys what it
/// is sent.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect()
}

/// Breaks `text` at spaces into lines of at most `width` characters; a longer word has a line to itself. Lines after the
/// first are indented.
pub fn wrap(text: &str, indent: usize, width: Option<usize>) -> String {
    let text = plain(text);
    let mut out = String::new();
    let mut column = 0;
    // Runs of spaces are kept inside a line: they separate the parts of a header.
    for word in text.split_inclusive(' ') {
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
    fn a_terminal_is_not_commanded() {
        assert_eq!(plain("a\x1b[31mb\tc\u{e9}\n"), "a?[31mb?c??");
    }
}
