//! Bad input gets a clear error, good input that looks bad round-trips, and nothing is lost.

mod connecting;
mod rows;
mod values;

use duroxide::providers::ProviderError;

fn permanent<T: std::fmt::Debug>(result: Result<T, ProviderError>, words: &[&str]) {
    let error = result.expect_err("refused");
    assert!(!error.is_retryable(), "{error}");
    for word in words {
        assert!(error.message.contains(word), "{word:?} is not in: {error}");
    }
}
