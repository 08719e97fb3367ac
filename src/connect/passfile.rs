//! Password files: a line is `host:port:database:user:password`, `*` stands for anything, `\` escapes.

use std::fs;
use std::io;
use std::path::Path;

use tracing::warn;

/// What a password file says.
pub(super) enum LookUp {
    /// The password of the first line that fits.
    Found(String),
    /// No line does.
    Nothing,
    /// Others may read it, so that it does not count.
    Ignored,
    /// It is something else, as `/dev/null` is, by which people say that there is none.
    NotAFile,
}

pub(super) fn look_up(file: &Path, wanted: [&str; 4]) -> io::Result<LookUp> {
    let metadata = fs::metadata(file)?;
    if !metadata.is_file() {
        return Ok(LookUp::NotAFile);
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if metadata.permissions().mode() & 0o077 != 0 {
            warn!(file = %file.display(), "the password file is ignored: others may read it; its mode should be 0600");
            return Ok(LookUp::Ignored);
        }
    }
    let found = find(&fs::read_to_string(file)?, wanted);
    Ok(found.map_or(LookUp::Nothing, LookUp::Found))
}

fn find(text: &str, wanted: [&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let [conditions @ .., password] = fields.as_slice() else {
            return None;
        };
        let fits = conditions.len() == 4
            && conditions
                .iter()
                .zip(wanted)
                .all(|((condition, literal), wanted)| (condition == "*" && !literal) || condition == wanted);
        (fits && !password.0.is_empty()).then(|| password.0.clone())
    })
}

/// The fields of a line, and whether anything in them was escaped. The fifth is everything that is left.
fn fields(line: &str) -> Vec<(String, bool)> {
    let mut fields = vec![(String::new(), false)];
    let mut rest = line.chars();
    while let Some(next) = rest.next() {
        let at_last = fields.len() == 5;
        if next == ':' && !at_last {
            fields.push((String::new(), false));
            continue;
        }
        let Some((field, escaped)) = fields.last_mut() else {
            break;
        };
        if next == '\\' {
            *escaped = true;
            field.extend(rest.next());
        } else {
            field.push(next);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# comment:*:*:*:no\nshort:line\ndb:5432:app:me:first\n*:5432:*:\\*:starred\n\
                        ::1\n\\:\\:1:*:*:me:six\n*:*:*:me:pass\\:wo\\\\rd\n";

    #[test]
    fn the_first_line_that_fits_counts() {
        assert_eq!(find(FILE, ["db", "5432", "app", "me"]).as_deref(), Some("first"));
        assert_eq!(find(FILE, ["db", "5433", "app", "me"]).as_deref(), Some("pass:wo\\rd"));
        assert_eq!(find(FILE, ["::1", "1", "app", "me"]).as_deref(), Some("six"));
        assert_eq!(find(FILE, ["db", "5432", "app", "*"]).as_deref(), Some("starred"));
        assert_eq!(find(FILE, ["db", "5432", "app", "you"]), None);
    }
}
