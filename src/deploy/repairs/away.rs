//! Where what is not ours goes.

use super::{Object, Place};

impl Place<'_> {
    /// Out of the way with it.
    pub(super) fn remove(&self, object: &str) -> String {
        let Object { kind, name, part, .. } = Object::parse(object);
        match kind {
            "table" | "view" => self.move_away(kind, name),
            "index" => format!("drop index concurrently {};", self.named(name)),
            "trigger" | "rule" => format!("drop {kind} {part} on {};", self.named(name)),
            "column" => format!(
                "/* what is in it is lost */ alter table {} drop column {part};",
                self.named(name)
            ),
            _ => format!("alter table {} drop {kind} {part};", self.named(name)),
        }
    }

    /// Moves it out of our schema, which may be `public`.
    pub(super) fn move_away(&self, kind: &str, name: &str) -> String {
        let (create, elsewhere) = self.elsewhere();
        format!("{create}alter {kind} {} set schema {elsewhere};", self.named(name))
    }

    /// The same for an extension, with all that belongs to it. `name`: quoted.
    pub(super) fn move_extension(&self, name: &str, is_relocatable: bool) -> String {
        let (create, elsewhere) = self.elsewhere();
        if is_relocatable {
            format!("{create}alter extension {name} set schema {elsewhere};")
        } else {
            format!(
                "/* it cannot be moved, and what it stores is lost */ {create}drop extension {name}; \
                 create extension {name} schema {elsewhere};"
            )
        }
    }

    fn elsewhere(&self) -> (&'static str, &'static str) {
        if self.schema.as_str() == "public" {
            ("create schema if not exists elsewhere; ", "elsewhere")
        } else {
            ("", "public")
        }
    }
}
