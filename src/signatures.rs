//! The parameter types of the functions, for calls without a prepared statement that would ask the server for them.
//!
//! They come from the description of a deployment: what a function takes never changes once it is released.

use std::collections::HashMap;
use std::sync::OnceLock;

use tokio_postgres::types::Type;

use crate::deploy::EXPECTED;

/// None if there is no such function, or a type of it is not known here.
pub(crate) fn parameter_types(function: &str) -> Option<&'static [Type]> {
    static SIGNATURES: OnceLock<HashMap<&str, Vec<Type>>> = OnceLock::new();
    SIGNATURES
        .get_or_init(|| EXPECTED.lines().filter_map(signature).collect())
        .get(function)
        .map(Vec::as_slice)
}

/// `function name(p_a text, p_b bigint[]) returns …`
fn signature(line: &str) -> Option<(&str, Vec<Type>)> {
    let (name, rest) = line.strip_prefix("function ")?.split_once('(')?;
    let (parameters, _) = rest.split_once(") returns ")?;
    let types = parameters
        .split(", ")
        .filter(|parameter| !parameter.is_empty())
        .map(|parameter| {
            let (_name, kind) = parameter.split_once(' ')?;
            built_in(kind.split(" DEFAULT ").next()?)
        })
        .collect::<Option<_>>()?;
    Some((name, types))
}

fn built_in(name: &str) -> Option<Type> {
    Some(match name {
        "boolean" => Type::BOOL,
        "boolean[]" => Type::BOOL_ARRAY,
        "\"char\"" => Type::CHAR,
        "\"char\"[]" => Type::CHAR_ARRAY,
        "integer" => Type::INT4,
        "integer[]" => Type::INT4_ARRAY,
        "bigint" => Type::INT8,
        "bigint[]" => Type::INT8_ARRAY,
        "text" => Type::TEXT,
        "text[]" => Type::TEXT_ARRAY,
        "uuid" => Type::UUID,
        "uuid[]" => Type::UUID_ARRAY,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those are called from Rust.
    #[test]
    fn every_function_of_the_runtime_has_types() {
        let mut callable = 0;
        for line in EXPECTED
            .lines()
            .filter(|line| line.contains(" security definer") && !line.contains("returns trigger"))
        {
            assert!(signature(line).is_some(), "{line}");
            callable += usize::from(line.starts_with("function "));
        }
        assert!(callable > 30, "{callable}");
        assert_eq!(
            parameter_types("renew_orchestration_item_lock"),
            Some([Type::TEXT, Type::UUID, Type::INT8].as_slice())
        );
        assert_eq!(parameter_types("get_deployment"), Some([].as_slice()));
        assert_eq!(parameter_types("no_such_function"), None);
    }
}
