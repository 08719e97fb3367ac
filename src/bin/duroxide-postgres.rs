//! The command `duroxide-postgres`: see `src/cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    duroxide_postgres::cli::main()
}
