//! Finds modules of one crate that use each other in a circle.
//!
//! A crate is read as the compiler reads it: from its root along `mod`, without code for tests only. Every
//! path in it that leads to a module of the same crate is a use. If the path ends at a name that the module
//! itself imports (a re-export), the use is of the module that defines it. Methods are not followed, since
//! their caller got a value of the type from somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Meta, UseTree};

/// A module's names from the root of its crate, or a path to something in it.
type Names = Vec<String>;

/// The maximum number of successive re-exports that are followed.
const RE_EXPORTS_MAX: usize = 8;

/// The content of one module.
#[derive(Default)]
struct Module {
    file: PathBuf,
    declared: BTreeSet<String>,
    /// Imported names, and the whole path of each.
    imported: BTreeMap<String, Names>,
    /// Modules of which all names are imported.
    globs: Vec<Names>,
    /// Paths as they are written.
    written: BTreeSet<Names>,
}

/// The modules of a crate.
#[derive(Default)]
pub struct Room(BTreeMap<Names, Module>);

/// Modules with one parent, each of which uses the next one, and the last one the first.
#[derive(Debug, PartialEq, Eq)]
pub struct Circle {
    parent: Names,
    members: BTreeSet<String>,
    uses: BTreeMap<(String, String), Places>,
}

/// The files that use something, and the paths there.
type Places = BTreeMap<PathBuf, BTreeSet<String>>;

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<&str> = self.members.iter().map(String::as_str).collect();
        write!(f, "in crate::{}: {}", self.parent.join("::"), members.join(", "))?;
        for ((user, used), places) in &self.uses {
            write!(f, "\n    {user} -> {used}")?;
            for (file, paths) in places {
                let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
                write!(f, "\n        {}: {}", file.display(), paths.join(", "))?;
            }
        }
        Ok(())
    }
}

/// Returns true if a condition of `cfg` is true in tests only.
fn is_for_tests(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => {
            let mut found = false;
            let _ = list.parse_nested_meta(|meta| {
                found |= meta.path.is_ident("test");
                // The value after a name (`= "…"`, `(…)`) is skipped.
                let _ = meta.value().and_then(|value| value.parse::<syn::Lit>());
                if meta.input.peek(syn::token::Paren) {
                    let _group: TokenTree = meta.input.parse()?;
                }
                Ok(())
            });
            found
        }
        _ => false,
    }
}

fn is_left_out(attributes: &[Attribute]) -> bool {
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.filter_map(|attribute| attribute.parse_args::<Meta>().ok()).any(|meta| is_for_tests(&meta))
}

fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Mod(item) => &item.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Collects the content of one module, including nested items and the arguments of macros.
struct Reader<'a>(&'a mut Module);

impl Reader<'_> {
    fn import(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &dyn ToString| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.import(&with(&path.ident), &path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(before, tree)),
            UseTree::Glob(_) => self.0.globs.push(before.to_vec()),
            UseTree::Name(name) if name.ident == "self" => self.name(before.last().cloned(), before.to_vec()),
            UseTree::Name(name) => self.name(Some(name.ident.to_string()), with(&name.ident)),
            UseTree::Rename(renamed) => self.name(Some(renamed.rename.to_string()), with(&renamed.ident)),
        }
    }

    fn name(&mut self, name: Option<String>, path: Names) {
        self.0.imported.insert(name.unwrap_or_default(), path);
    }

    /// Reads paths in what only a macro can parse: names with `::` between them.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut path: Names = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end_path(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                other => {
                    self.end_path(&mut path);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.read_tokens(group.stream());
                    }
                }
            }
        }
        self.end_path(&mut path);
    }

    fn end_path(&mut self, path: &mut Names) {
        if !path.is_empty() {
            self.0.written.insert(std::mem::take(path));
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_left_out(attributes_of(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_left_out(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&[], &item.tree);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.read_tokens(list.tokens.clone());
        }
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.read_tokens(call.tokens.clone());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.0.written.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
}

/// Returns the path of a module's file, if an attribute gives it.
fn given_path(attributes: &[syn::Attribute]) -> Option<String> {
    let given = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    match &given.meta.require_name_value().ok()?.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) => Some(path.value()),
        _ => None,
    }
}

impl Room {
    /// Reads a crate by the directory of its sources.
    pub fn read(sources: &Path) -> Room {
        let mut room = Room::default();
        let root =
            ["lib.rs", "main.rs"].map(|name| sources.join(name)).into_iter().find(|path| path.exists());
        room.read_file(Vec::new(), &root.expect("a crate has a root"), sources);
        for module in room.0.values_mut() {
            module.file = module.file.strip_prefix(sources).unwrap_or(&module.file).to_path_buf();
        }
        room
    }

    /// Reads a file; `below` is the directory of the files of its children.
    fn read_file(&mut self, names: Names, file: &Path, below: &Path) {
        let text = std::fs::read_to_string(file).expect("a source file");
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add(names, file, below, &parsed.items);
    }

    fn add(&mut self, names: Names, file: &Path, below: &Path, items: &[Item]) {
        let mut module = Module { file: file.to_path_buf(), ..Module::default() };
        for item in items.iter().filter(|item| !is_left_out(attributes_of(item))) {
            module.declared.extend(name_of(item));
            Reader(&mut module).visit_item(item);
            if let Item::Mod(child) = item {
                let name = child.ident.to_string();
                let below = below.join(&name);
                let names = [&names[..], std::slice::from_ref(&name)].concat();
                match &child.content {
                    Some((_, items)) => self.add(names, file, &below, items),
                    None => {
                        let given = given_path(&child.attrs).map(|path| file.with_file_name(path));
                        let files = [below.with_extension("rs"), below.join("mod.rs")];
                        let file = given
                            .iter()
                            .chain(&files)
                            .find(|file| file.exists())
                            .expect("a module has a file");
                        self.read_file(names, file, &below);
                    }
                }
            }
        }
        self.0.insert(names, module);
    }

    /// Returns the whole path of what a module calls `path`, if it belongs to this crate.
    fn whole(&self, at: &[String], path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([at, rest].concat()),
            "super" => {
                let supers = path.iter().take_while(|name| *name == "super").count();
                let parent = at.get(..at.len().checked_sub(supers)?)?;
                Some([parent, &path[supers..]].concat())
            }
            _ if self.0.contains_key(&[at, &path[..1]].concat()) => Some([at, path].concat()),
            _ => None,
        }
    }

    /// Does the same if names that the module has imported may come first.
    fn found(&self, at: &[String], path: &[String], re_exports: usize) -> Option<Names> {
        if re_exports == RE_EXPORTS_MAX {
            return None;
        }
        let module = self.0.get(at)?;
        let (first, rest) = path.split_first()?;
        if let Some(imported) = module.imported.get(first) {
            // A name may be that of the crate it comes from.
            let imported = self.whole(at, imported).or_else(|| {
                (imported.first() != Some(first)).then(|| self.found(at, imported, re_exports + 1)).flatten()
            })?;
            return Some([&imported[..], rest].concat());
        }
        if let Some(whole) = self.whole(at, path) {
            return Some(whole);
        }
        if module.declared.contains(first) {
            return Some([at, path].concat());
        }
        let globs = module.globs.iter().filter_map(|glob| self.whole(at, glob));
        let mut found = globs.filter(|glob| glob != at).filter_map(|glob| {
            let within = self.defining(&[&glob[..], path].concat(), re_exports + 1)?;
            self.names_something(&within, &glob, first).then_some([&glob[..], path].concat())
        });
        found.next()
    }

    /// Returns true if a glob provides the name, imported or declared there.
    fn names_something(&self, within: &[String], glob: &[String], name: &String) -> bool {
        within != glob || self.0.get(glob).is_some_and(|module| module.declared.contains(name))
    }

    /// Returns the module in which the whole path ends, following re-exports.
    fn defining(&self, whole: &[String], re_exports: usize) -> Option<Names> {
        let modules = (0..=whole.len()).take_while(|length| self.0.contains_key(&whole[..*length])).last()?;
        let (at, rest) = whole.split_at(modules);
        let Some(first) = rest.first() else { return Some(at.to_vec()) };
        let module = self.0.get(at)?;
        if module.declared.contains(first) || re_exports >= RE_EXPORTS_MAX {
            return Some(at.to_vec());
        }
        match self.found(at, rest, re_exports + 1) {
            Some(elsewhere) if elsewhere != whole => self.defining(&elsewhere, re_exports + 1),
            // From another crate, or from a macro.
            _ => Some(at.to_vec()),
        }
    }

    /// Returns every use: the user, the used module, and the path.
    fn uses(&self) -> Vec<(&Names, Names, String)> {
        let mut uses = Vec::new();
        for (at, module) in &self.0 {
            let imported = module.imported.values().chain(&module.globs);
            let imported = imported.filter_map(|path| Some((path, self.whole(at, path)?)));
            let written = module.written.iter().filter_map(|path| Some((path, self.found(at, path, 0)?)));
            for (path, whole) in imported.chain(written) {
                if let Some(used) = self.defining(&whole, 0) {
                    uses.push((at, used, path.join("::")));
                }
            }
        }
        uses
    }

    /// Returns the circles among the children of each module.
    pub fn circles(&self) -> Vec<Circle> {
        let uses = self.uses();
        let parents = self.0.keys().filter_map(|names| names.split_last()).map(|(_, parent)| parent.to_vec());
        let parents: BTreeSet<Names> = parents.collect();
        parents.iter().flat_map(|parent| self.circles_below(parent, &uses)).collect()
    }

    fn circles_below(&self, parent: &Names, uses: &[(&Names, Names, String)]) -> Vec<Circle> {
        let child = |names: &Names| names.strip_prefix(&parent[..]).and_then(|rest| rest.first().cloned());
        let mut edges: BTreeMap<(String, String), Places> = BTreeMap::new();
        for (user, used, path) in uses {
            if let (Some(from), Some(to)) = (child(user), child(used))
                && from != to
            {
                let places = edges.entry((from, to)).or_default();
                places.entry(self.0[*user].file.clone()).or_default().insert(path.clone());
            }
        }
        let reach = reach(edges.keys());
        let reaches = |from: &String, to: &String| reach.get(from).is_some_and(|all| all.contains(to));
        let in_circles = reach.keys().filter(|module| reaches(module, module));
        let circles: BTreeSet<BTreeSet<String>> = in_circles
            .map(|module| reach[module].iter().filter(|other| reaches(other, module)).cloned().collect())
            .collect();
        let told = |members: BTreeSet<String>| {
            let within =
                edges.iter().filter(|((from, to), _)| members.contains(from) && members.contains(to));
            let uses = within.map(|(edge, places)| (edge.clone(), places.clone())).collect();
            Circle { parent: parent.clone(), members, uses }
        };
        circles.into_iter().map(told).collect()
    }
}

/// Returns what each module reaches by one edge or several.
fn reach<'a>(edges: impl Iterator<Item = &'a (String, String)>) -> BTreeMap<String, BTreeSet<String>> {
    let mut reach: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in edges {
        reach.entry(from.clone()).or_default().insert(to.clone());
    }
    loop {
        let mut grown = false;
        for from in reach.keys().cloned().collect::<Vec<String>>() {
            let further: Vec<String> =
                reach[&from].iter().filter_map(|next| reach.get(next)).flatten().cloned().collect();
            let known = reach.get_mut(&from).expect("it is a key");
            further.into_iter().for_each(|module| grown |= known.insert(module));
        }
        if !grown {
            return reach;
        }
    }
}

/// Returns the members of the circles of a made-up crate.
fn members(text: &str) -> Vec<Vec<String>> {
    let mut room = Room::default();
    let parsed = syn::parse_file(text).expect("Rust");
    room.add(Vec::new(), Path::new("made-up.rs"), Path::new("made-up"), &parsed.items);
    room.circles().into_iter().map(|circle| circle.members.into_iter().collect()).collect()
}

#[test]
fn modules_that_use_each_other_are_found() {
    let direct = "mod a { use crate::b::B; struct A(B); } mod b { use super::a; pub struct B(a::A); }";
    assert_eq!(members(direct), [["a", "b"]]);
    let by_a_child =
        "mod a { mod child { fn f() { crate::b::g(); } } pub fn h() {} } mod b { fn g() { super::a::h() } }";
    assert_eq!(members(by_a_child), [["a", "b"]]);
    let of_three = "
        mod a { use crate::b::B; }
        mod b { use crate::c::*; pub struct B; }
        mod c { fn f(x: crate::a::A) {} }
        mod d { use crate::a; }";
    assert_eq!(members(of_three), [["a", "b", "c"]]);
    let within =
        "mod a { mod x { use super::y::Y; pub struct X; } mod y { use super::x::X; pub struct Y; } }";
    assert_eq!(members(within), [["x", "y"]]);
}

#[test]
fn re_exports_globs_and_macros_hide_nothing() {
    let re_exported = "
        mod a { mod inner { pub struct A; } pub use inner::A; fn f(b: super::B) {} }
        mod b { use super::A; pub struct B; }
        pub use a::A;
        pub use b::B;";
    assert_eq!(members(re_exported), [["a", "b"]]);
    let by_glob = "
        mod a { use super::*; pub struct A; fn f() { B; } }
        mod b { use crate::A; pub struct B; }
        use a::A;
        pub use b::*;";
    assert_eq!(members(by_glob), [["a", "b"]]);
    let in_a_macro =
        "mod a { fn f() { println!(\"{}\", crate::b::N) } pub struct A; } mod b { use crate::a::A; }";
    assert_eq!(members(in_a_macro), [["a", "b"]]);
    let in_an_attribute =
        "mod a { #[arg(parser = crate::b::parse)] pub struct A; } mod b { use crate::a::A; }";
    assert_eq!(members(in_an_attribute), [["a", "b"]]);
}

#[test]
fn what_is_no_circle_is_none() {
    let parent_and_child = "mod a { mod child { use super::A; } use child::B; pub struct A; }";
    assert_eq!(members(parent_and_child), [[""; 0]; 0]);
    let for_tests = "
        mod a {
            pub struct A;
            #[cfg(test)]
            mod tests { use crate::b::B; }
            #[cfg(all(test, unix))]
            use crate::b::B;
        }
        mod b { use crate::a::A; pub struct B; }";
    assert_eq!(members(for_tests), [[""; 0]; 0]);
    let of_one_name =
        "mod a { use std::fmt; fn f() -> fmt::Result {} pub struct A; } mod fmt { use crate::a::A; }";
    assert_eq!(members(of_one_name), [[""; 0]; 0]);
}
