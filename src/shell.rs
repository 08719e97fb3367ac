//! What a shell makes of the commands we suggest.

use crate::schema_name::SchemaName;

/// How commands about a schema begin.
pub(crate) fn command(schema: &SchemaName) -> String {
    format!("duroxide-postgres --schema {}", quoted(schema.as_str()))
}

/// A word that a shell takes as it is.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_survive_a_shell() {
        for word in [
            "plain-1.2",
            "",
            "two words",
            "it's",
            "$HOME",
            "a\"b",
            "*",
            "naïve",
            "-x",
            "a\nb",
        ] {
            let output = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {}", quoted(word))])
                .output()
                .expect("sh");
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
        assert_eq!(quoted("orders-17"), "orders-17");
    }
}
