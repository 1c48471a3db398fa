//! Random cases as trees, so that they can be shrunk.

use muster_domain::fixture::random::SplitMix64;

/// A text of fixed parts, shrinkable parts, and lists with optional items.
#[derive(Clone, Debug)]
pub(super) enum Tree {
    Text(String),
    Parts(Vec<Tree>),
    /// Items with a separator between them.
    List(Vec<Tree>, &'static str),
    /// An expression. When a case is shrunk, any expression inside it may replace it.
    Expression(Box<Tree>),
}

impl Tree {
    fn write(&self, text: &mut String) {
        match self {
            Self::Text(own) => text.push_str(own),
            Self::Parts(parts) => parts.iter().for_each(|part| part.write(text)),
            Self::List(items, separator) => {
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        text.push_str(separator);
                    }
                    item.write(text);
                }
            }
            Self::Expression(inner) => inner.write(text),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text
    }

    /// The outermost expressions inside.
    fn expressions(&self, found: &mut Vec<Self>) {
        match self {
            Self::Text(_) => {}
            Self::Parts(parts) | Self::List(parts, _) => {
                for part in parts {
                    part.expressions(found);
                }
            }
            Self::Expression(_) => found.push(self.clone()),
        }
    }

    /// Trees that are smaller in one place.
    fn reduced_variants(&self) -> Vec<Self> {
        match self {
            Self::Text(_) => Vec::new(),
            Self::Parts(parts) => replaced(parts).map(Self::Parts).collect(),
            Self::List(items, separator) => {
                let without = (0..items.len()).map(|at| {
                    let mut items = items.clone();
                    items.remove(at);
                    Self::List(items, separator)
                });
                let inner = replaced(items).map(|items| Self::List(items, separator));
                without.chain(inner).collect()
            }
            Self::Expression(inner) => {
                let mut smaller = Vec::new();
                inner.expressions(&mut smaller);
                let simple = ["1", "\"a\"", "[]"];
                let length = self.text().len();
                let simple = simple.iter().filter(|text| text.len() < length);
                smaller.extend(simple.map(|text| expression(*text)));
                smaller.extend(
                    inner
                        .reduced_variants()
                        .into_iter()
                        .map(|inner| Self::Expression(Box::new(inner))),
                );
                smaller
            }
        }
    }
}

fn replaced(parts: &[Tree]) -> impl Iterator<Item = Vec<Tree>> {
    parts.iter().enumerate().flat_map(move |(at, part)| {
        part.reduced_variants().into_iter().map(move |part| {
            let mut parts = parts.to_vec();
            parts[at] = part;
            parts
        })
    })
}

fn expression(text: impl Into<String>) -> Tree {
    Tree::Expression(Box::new(Tree::Text(text.into())))
}

fn fixed(text: impl Into<String>) -> Tree {
    Tree::Text(text.into())
}

#[derive(Clone, Debug)]
pub(super) struct Case {
    kind: &'static str,
    tree: Tree,
}

impl Case {
    /// The kind and the text of a case.
    pub(super) fn kind_and_text(&self) -> (&'static str, String) {
        (self.kind, self.tree.text())
    }

    pub(super) fn reduced_variants(&self) -> Vec<Self> {
        let kind = self.kind;
        let trees = self.tree.reduced_variants().into_iter();
        trees.map(|tree| Self { kind, tree }).collect()
    }
}

/// Makes cases from a seed.
#[derive(Debug)]
pub(super) struct Generator {
    random: SplitMix64,
    /// Names of `for` that may be used.
    names: Vec<&'static str>,
}

const NAMES: [&str; 7] = ["text", "count", "tuple", "object", "list", "set", "map"];
const WORDS: [&str; 40] = [
    "a",
    "b",
    "abc",
    "",
    " ",
    "Hello",
    "wörld",
    "e\u{301}x",
    "ß",
    "İi",
    "ŉ",
    "ǆ",
    "👩‍👩‍👧",
    "1",
    "2.5",
    "true",
    "false",
    "null",
    "x-y_z",
    "a,b",
    "a\tb",
    "  lead",
    "trail  ",
    "$",
    "%",
    "$${a}",
    "%%{b}",
    "$$",
    "a$b",
    "%d",
    "/a/b/",
    "a/../b",
    "~",
    ".",
    "<&>",
    "10.0.0.0/8",
    "fd00::/48",
    "é",
    "ab12",
    "日本",
];
const NUMBERS: [&str; 26] = [
    "0",
    "1",
    "2",
    "3",
    "7",
    "10",
    "-1",
    "-2",
    "0.1",
    "0.2",
    "0.3",
    "1.15",
    "2.5",
    "-2.5",
    "1.0",
    "1e3",
    "1e-7",
    "1.5e10",
    "100",
    "12345678901234567890",
    "0.000001",
    "1e21",
    "3.14159",
    "4",
    "16",
    "255",
];
const TYPES: [&str; 12] = [
    "string",
    "number",
    "bool",
    "any",
    "list(string)",
    "list(number)",
    "set(string)",
    "set(number)",
    "map(string)",
    "list(any)",
    "object({ a = string })",
    "tuple([string, number])",
];
const TIMES: [&str; 8] = [
    "2020-01-02T03:04:05Z",
    "2020-01-02T05:04:05+02:00",
    "1999-12-31T23:59:59.5-07:30",
    "2024-02-29T00:00:00Z",
    "2020-13-01T00:00:00Z",
    "2020-01-02 03:04:05Z",
    "2020-01-02T24:00:00Z",
    "0001-01-01T00:00:00+00:00",
];
const DURATIONS: [&str; 10] = [
    "1h", "-1h30m", "1.5s", "500ms", "1h1m1s", "x", "", "1us", "0", "+.5h",
];
const DATES: [&str; 9] = [
    "DD MMM YYYY hh:mm ZZZ",
    "EEE, D MMMM YY h:m:s AA",
    "'at' HH 'o''clock' aa",
    "YYYY-MM-DD'T'hh:mm:ssZ",
    "ZZZZ ZZZZZ",
    "EEEE H",
    "YYY",
    "''",
    "'x",
];
const FORMATS: [&str; 28] = [
    "%d", "%s", "%v", "%q", "%t", "%x", "%X", "%o", "%b", "%e", "%f", "%g", "%5d|", "%-5s|",
    "%05d", "%+d", "%.2f", "%8.3f", "%#v", "%#x", "%[1]s", "%s-%s", "%%", "plain", "%.1s", "%G",
    "% d", "%05s",
];
const PATTERNS: [&str; 12] = [
    "a",
    "[a-z]+",
    "(\\\\d+)",
    "(?P<x>[a-z])(?P<y>.)",
    "^",
    "\\\\b",
    "(a)|(b)",
    "[^a]",
    ".",
    "(",
    "\\\\s*",
    "x{2}",
];
const ADDRESSES: [&str; 10] = [
    "10.0.0.0/8",
    "192.168.1.77/24",
    "fd00::/48",
    "10.0.0.0/30",
    "0.0.0.0/0",
    "::1/128",
    "10.0.0.0/33",
    "10.1.2.3",
    "x/8",
    "172.16.0.0/12",
];
const YAMLS: [&str; 14] = [
    "a: 1",
    "- x\\n- 2.5\\n- yes",
    "{a: [1, two], b: ~}",
    "a: 0x1f",
    "x",
    "\\\"q\\\"",
    "a:\\n  b: c\\n  d: [e]",
    "- 'no'\\n- no",
    "a: 1.50",
    "[]",
    "a: !!str 5",
    "a: &x 1\\nb: *x",
    "'1'",
    "- - 1\\n  - 2",
];
const JSONS: [&str; 12] = [
    "{\\\"a\\\": 1.50}",
    "[1, \\\"x\\\", null]",
    "1e3",
    "\\\"\\\\u00e9\\\"",
    "{",
    "[1,]",
    "true",
    "-0",
    "0.1",
    "12345678901234567890123",
    "{\\\"a\\\":{\\\"b\\\":[]}}",
    "nul",
];
const CSVS: [&str; 8] = [
    "a,b\\n1,2\\n",
    "a\\n",
    "a,b\\n1\\n",
    "a,a\\n1,2\\n",
    "a,b\\n\\\"x, y\\\",\\\"q\\\"\\\"q\\\"\\n",
    "",
    "a\\n\\n1\\n",
    "a,b\\nx\\\"y,z\\n",
];
const BASE64S: [&str; 6] = ["aGVsbG8=", "aGVsbG8", "/w==", "w6k=", "", "aGVs\\nbG8="];

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: SplitMix64::new(seed),
            names: Vec::new(),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound)
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        self.random.one_of(of)
    }

    pub(super) fn case(&mut self) -> Case {
        self.names.clear();
        if self.below(4) > 0 {
            let depth = 1 + self.below(3);
            return Case {
                kind: "expression",
                tree: self.any(depth),
            };
        }
        Case {
            kind: "body",
            tree: self.body(2),
        }
    }

    /// `text` with some characters left out, doubled or replaced.
    pub(super) fn damaged(&mut self, text: &str) -> String {
        let mut damaged = String::new();
        for c in text.chars() {
            match self.below(40) {
                0 => {}
                1 => damaged.extend([c, c]),
                2 => damaged.push(self.one(&[
                    '"', '{', '}', '$', '%', '~', '\\', '\n', '[', '(', '.', '<', '😀', '\0',
                    '\u{301}', 'e',
                ])),
                _ => damaged.push(c),
            }
        }
        damaged
    }

    fn call(name: &str, args: Vec<Tree>) -> Tree {
        let args = Tree::List(args, ", ");
        Tree::Expression(Box::new(Tree::Parts(vec![
            fixed(format!("{name}(")),
            args,
            fixed(")"),
        ])))
    }

    fn literal(&mut self, texts: &[&str]) -> Tree {
        let text = self.one(texts);
        expression(format!("\"{text}\""))
    }

    /// An expression of any type.
    fn any(&mut self, depth: usize) -> Tree {
        match self.below(10) {
            0..=2 => self.number(depth),
            3..=5 => self.string(depth),
            6 => self.boolean(depth),
            7 => self.list(depth),
            8 => self.object(depth),
            _ => self.other(depth),
        }
    }

    fn other(&mut self, depth: usize) -> Tree {
        if depth == 0 {
            return match self.below(3) {
                0 => expression("null"),
                _ => self.name(),
            };
        }
        let inner = depth - 1;
        match self.below(8) {
            0 => self.conditional(inner, Self::any),
            1 => {
                let args = (0..=self.below(3)).map(|_| self.any(inner)).collect();
                let name = self.one(&["coalesce", "try"]);
                Self::call(name, args)
            }
            2 => {
                let kind = fixed(self.one(&TYPES));
                let args = vec![self.any(inner), kind];
                Self::call("convert", args)
            }
            3 => self.path(inner),
            4 => {
                let text = self.literal(&YAMLS);
                Self::call("yamldecode", vec![text])
            }
            5 => {
                let text = self.literal(&JSONS);
                Self::call("jsondecode", vec![text])
            }
            6 => {
                let args = vec![
                    self.object(inner),
                    self.literal(&["a", "b", "z"]),
                    self.any(inner),
                ];
                Self::call("lookup", args)
            }
            _ => {
                let name = self.one(&["element", "index"]);
                let args = vec![self.list(inner), self.number(inner)];
                Self::call(name, args)
            }
        }
    }

    fn name(&mut self) -> Tree {
        let names: Vec<&str> = NAMES
            .iter()
            .copied()
            .chain(self.names.iter().copied())
            .collect();
        expression(self.one(&names))
    }

    fn path(&mut self, depth: usize) -> Tree {
        let step = match self.below(9) {
            0 => ".a".to_owned(),
            1 => ".b".to_owned(),
            2 => "[0]".to_owned(),
            3 => "[*]".to_owned(),
            4 => ".*".to_owned(),
            5 => "[*].a".to_owned(),
            6 => ".0".to_owned(),
            7 => "[\"a\"]".to_owned(),
            _ => ".*.a".to_owned(),
        };
        let source = match self.below(3) {
            0 => self.name(),
            1 => self.object(depth),
            _ => self.list(depth),
        };
        Tree::Expression(Box::new(Tree::Parts(vec![source, fixed(step)])))
    }

    fn conditional(&mut self, depth: usize, of: fn(&mut Self, usize) -> Tree) -> Tree {
        let parts = vec![
            fixed("("),
            self.boolean(depth),
            fixed(" ? "),
            of(self, depth),
            fixed(" : "),
            of(self, depth),
            fixed(")"),
        ];
        Tree::Expression(Box::new(Tree::Parts(parts)))
    }

    fn binary(&mut self, left: Tree, operator: &str, right: Tree) -> Tree {
        let close = if self.below(3) == 0 {
            ("(", ")")
        } else {
            ("", "")
        };
        let parts = vec![
            fixed(close.0),
            left,
            fixed(format!(" {operator} ")),
            right,
            fixed(close.1),
        ];
        Tree::Expression(Box::new(Tree::Parts(parts)))
    }

    fn number(&mut self, depth: usize) -> Tree {
        if depth == 0 || self.below(4) == 0 {
            return match self.below(8) {
                0 => expression("count"),
                1 => expression(format!("\"{}\"", self.one(&NUMBERS))),
                _ => expression(self.one(&NUMBERS)),
            };
        }
        let inner = depth - 1;
        match self.below(11) {
            0..=3 => {
                let operator = self.one(&["+", "-", "*", "/", "%"]);
                let (left, right) = (self.number(inner), self.number(inner));
                self.binary(left, operator, right)
            }
            4 => {
                let name = self.one(&["abs", "ceil", "floor", "signum"]);
                let arg = self.number(inner);
                Self::call(name, vec![arg])
            }
            5 => {
                let name = self.one(&["max", "min"]);
                let args = (0..=self.below(2)).map(|_| self.number(inner)).collect();
                Self::call(name, args)
            }
            6 => {
                let arg = self.string(inner);
                Self::call("strlen", vec![arg])
            }
            7 => {
                let arg = self.list(inner);
                Self::call("length", vec![arg])
            }
            8 => {
                let base = self.one(&["2", "10", "16", "36", "62", "1"]);
                let text = self.literal(&["10", "ff", "-7", "Zz", "", "9_9", "+3", "0x10"]);
                Self::call("parseint", vec![text, fixed(base)])
            }
            9 => {
                let operand = self.number(inner);
                Tree::Expression(Box::new(Tree::Parts(vec![fixed("-"), operand])))
            }
            _ => self.conditional(inner, Self::number),
        }
    }

    fn boolean(&mut self, depth: usize) -> Tree {
        if depth == 0 || self.below(5) == 0 {
            return expression(self.one(&["true", "false", "\"true\"", "\"1\""]));
        }
        let inner = depth - 1;
        match self.below(8) {
            0 | 1 => {
                let operator = self.one(&["<", "<=", ">", ">="]);
                let (left, right) = (self.number(inner), self.number(inner));
                self.binary(left, operator, right)
            }
            2 | 3 => {
                let operator = self.one(&["==", "!="]);
                let (left, right) = (self.any(inner), self.any(inner));
                self.binary(left, operator, right)
            }
            4 => {
                let operator = self.one(&["&&", "||"]);
                let (left, right) = (self.boolean(inner), self.boolean(inner));
                self.binary(left, operator, right)
            }
            5 => {
                let operand = self.boolean(inner);
                Tree::Expression(Box::new(Tree::Parts(vec![fixed("!"), operand])))
            }
            6 => {
                let arg = self.any(inner);
                Self::call("can", vec![arg])
            }
            _ => {
                // A null that is searched for has an unknown answer in go-cty.
                let args = vec![self.list(inner), self.string(inner)];
                Self::call("contains", args)
            }
        }
    }

    /// A quoted text, with its parts between the quotes.
    #[expect(clippy::too_many_lines, reason = "it is a list of calls")]
    fn string(&mut self, depth: usize) -> Tree {
        if depth == 0 || self.below(4) == 0 {
            return match self.below(8) {
                0 => expression("text"),
                1 => self.number(0),
                _ => self.literal(&WORDS),
            };
        }
        let inner = depth - 1;
        let text = |generator: &mut Self| generator.string(inner);
        match self.below(26) {
            0..=4 => self.template(inner),
            5 => {
                let name = self.one(&[
                    "upper",
                    "lower",
                    "title",
                    "chomp",
                    "trimspace",
                    "reverse",
                    "strrev",
                    "base64encode",
                    "urlencode",
                    "md5",
                    "sha1",
                    "sha256",
                    "sha512",
                ]);
                let arg = text(self);
                Self::call(name, vec![arg])
            }
            6 => {
                let name = self.one(&["trim", "trimprefix", "trimsuffix"]);
                let args = vec![text(self), text(self)];
                Self::call(name, args)
            }
            7 => {
                let args = vec![text(self), self.number(0), self.number(0)];
                Self::call("substr", args)
            }
            8 => {
                let args = vec![text(self), text(self), text(self)];
                Self::call("replace", args)
            }
            9 => {
                let args = vec![text(self), self.list(inner)];
                Self::call("join", args)
            }
            10..=12 => {
                let format = self.literal(&FORMATS);
                let mut args = vec![format];
                args.extend((0..self.below(3)).map(|_| self.any(inner)));
                Self::call("format", args)
            }
            13 => {
                let args = vec![self.literal(&DATES), self.literal(&TIMES)];
                Self::call("formatdate", args)
            }
            14 => {
                let args = vec![self.literal(&TIMES), self.literal(&DURATIONS)];
                Self::call("timeadd", args)
            }
            15 | 16 => {
                let arg = self.any(inner);
                Self::call("jsonencode", vec![arg])
            }
            17 => {
                let arg = self.plain(inner);
                Self::call("yamlencode", vec![arg])
            }
            18 => {
                let args = vec![self.literal(&ADDRESSES), self.number(0)];
                Self::call("cidrhost", args)
            }
            19 => {
                let arg = self.literal(&ADDRESSES);
                Self::call("cidrnetmask", vec![arg])
            }
            20 => {
                let bits = self.one(&["0", "1", "4", "8", "24", "33"]);
                let number = fixed(self.one(&["0", "1", "5", "256", "\"3\"", "1.5"]));
                let args = vec![self.literal(&ADDRESSES), fixed(bits), number];
                Self::call("cidrsubnet", args)
            }
            21 => {
                let name = self.one(&["basename", "dirname"]);
                let arg =
                    self.literal(&["/a/b/", "", "a", "/", "a//b", "..", "/a/../b", "./x", "a/."]);
                Self::call(name, vec![arg])
            }
            22 => {
                let args = vec![
                    fixed(self.one(&["0", "1", "3"])),
                    self.literal(&["a\\nb", "x", "\\n"]),
                ];
                Self::call("indent", args)
            }
            23 => {
                let args = vec![
                    text(self),
                    self.literal(&PATTERNS),
                    self.literal(&["<$0>", "x", "$1", "$$"]),
                ];
                Self::call("regex_replace", args)
            }
            24 => {
                let arg = self.literal(&BASE64S);
                Self::call("base64decode", vec![arg])
            }
            _ => self.conditional(inner, Self::string),
        }
    }

    /// A value with simple texts only.
    fn plain(&mut self, depth: usize) -> Tree {
        match self.below(5) {
            0 => expression(self.one(&["1", "-2.5", "true", "\"x\"", "\"a b\"", "\"5\"", "\"\""])),
            1 if depth > 0 => {
                let items = (0..self.below(3)).map(|_| self.plain(depth - 1)).collect();
                let parts = vec![fixed("["), Tree::List(items, ", "), fixed("]")];
                Tree::Expression(Box::new(Tree::Parts(parts)))
            }
            2 if depth > 0 => {
                let value = self.plain(depth - 1);
                let parts = vec![fixed("{ k = "), value, fixed(", z = 1 }")];
                Tree::Expression(Box::new(Tree::Parts(parts)))
            }
            _ => expression(self.one(&["\"y\"", "0.1", "\"é\"", "\"a: b\"", "\"null\""])),
        }
    }

    /// A text in quotes with interpolations and directives.
    fn template(&mut self, depth: usize) -> Tree {
        let parts = vec![
            fixed("\""),
            self.template_parts(depth, &QUOTED),
            fixed("\""),
        ];
        Tree::Expression(Box::new(Tree::Parts(parts)))
    }

    fn template_parts(&mut self, depth: usize, words: &[&'static str]) -> Tree {
        let mut parts = Vec::new();
        for _ in 0..=self.below(4) {
            let (open, close) = (self.one(&["", "", "~"]), self.one(&["", "", "~"]));
            let part = match self.below(8) {
                4 | 5 => {
                    let value = self.any(depth);
                    Tree::Parts(vec![
                        fixed(format!("${{{open} ")),
                        value,
                        fixed(format!(" {close}}}")),
                    ])
                }
                6 if depth > 0 => {
                    let condition = self.boolean(depth - 1);
                    let yes = self.template_parts(depth - 1, words);
                    let otherwise = if self.below(2) == 0 {
                        let no = self.template_parts(depth - 1, words);
                        Tree::Parts(vec![fixed(format!("%{{{open} else {close}}}")), no])
                    } else {
                        fixed("")
                    };
                    Tree::Parts(vec![
                        fixed(format!("%{{{open} if ")),
                        condition,
                        fixed(format!(" {close}}}")),
                        yes,
                        otherwise,
                        fixed(format!("%{{{open} endif {close}}}")),
                    ])
                }
                7 if depth > 0 => {
                    let list = self.list(depth - 1);
                    self.names.push("v");
                    let inner = self.template_parts(depth - 1, words);
                    self.names.pop();
                    Tree::Parts(vec![
                        fixed(format!("%{{{open} for v in ")),
                        list,
                        fixed(format!(" {close}}}")),
                        inner,
                        fixed(format!("%{{{open} endfor {close}}}")),
                    ])
                }
                _ => fixed(self.one(words)),
            };
            parts.push(part);
        }
        Tree::List(parts, "")
    }

    #[expect(clippy::too_many_lines, reason = "it is a list of calls")]
    fn list(&mut self, depth: usize) -> Tree {
        if depth == 0 {
            return match self.below(4) {
                0 => expression(self.one(&["tuple", "list", "set"])),
                1 => expression("[]"),
                2 => expression("[\"b\", \"a\"]"),
                _ => expression("[3, 1, 2]"),
            };
        }
        let inner = depth - 1;
        match self.below(20) {
            0..=5 => {
                let items = (0..self.below(4)).map(|_| self.any(inner)).collect();
                let end = self.one(&["]", ",]", "\n]"]);
                let parts = vec![fixed("["), Tree::List(items, ", "), fixed(end)];
                Tree::Expression(Box::new(Tree::Parts(parts)))
            }
            6 | 7 => {
                let list = self.list(inner);
                self.names.extend(["i", "v"]);
                let value = self.any(inner);
                let filter = if self.below(2) == 0 {
                    Tree::Parts(vec![fixed(" if "), self.boolean(inner)])
                } else {
                    fixed("")
                };
                self.names.truncate(self.names.len() - 2);
                let parts = vec![
                    fixed("[for i, v in "),
                    list,
                    fixed(" : "),
                    value,
                    filter,
                    fixed("]"),
                ];
                Tree::Expression(Box::new(Tree::Parts(parts)))
            }
            8 => {
                let name = self.one(&["distinct", "flatten", "sort", "compact"]);
                let arg = self.list(inner);
                Self::call(name, vec![arg])
            }
            9 => {
                let name = self.one(&["concat", "coalescelist", "setproduct"]);
                let args = (0..=self.below(2)).map(|_| self.list(inner)).collect();
                Self::call(name, args)
            }
            10 => {
                let name = self.one(&["setunion", "setintersection", "setsubtract"]);
                let args = vec![self.list(inner), self.list(inner)];
                Self::call(name, args)
            }
            11 => {
                let args = (0..=self.below(3)).map(|_| self.number(0)).collect();
                Self::call("range", args)
            }
            12 => {
                let args = vec![self.list(inner), self.number(0), self.number(0)];
                Self::call("slice", args)
            }
            13 => {
                let args = vec![self.list(inner), self.number(0)];
                Self::call("chunklist", args)
            }
            14 => {
                let name = self.one(&["keys", "values"]);
                let arg = self.object(inner);
                Self::call(name, vec![arg])
            }
            15 => {
                let args = vec![self.string(0), self.string(inner)];
                Self::call("split", args)
            }
            16 => {
                let format = self.literal(&FORMATS);
                let args = vec![format, self.list(inner)];
                Self::call("formatlist", args)
            }
            17 | 18 => {
                let bits = |generator: &mut Self| fixed(generator.one(&["1", "2", "4", "8", "0"]));
                let args = vec![self.literal(&ADDRESSES), bits(self), bits(self)];
                Self::call("cidrsubnets", args)
            }
            _ => {
                let text = self.literal(&CSVS);
                Self::call("csvdecode", vec![text])
            }
        }
    }

    fn object(&mut self, depth: usize) -> Tree {
        if depth == 0 {
            return expression(self.one(&[
                "object",
                "map",
                "{}",
                "{ a = 1 }",
                "{ b = \"x\", a = 2 }",
            ]));
        }
        let inner = depth - 1;
        match self.below(7) {
            0..=3 => {
                let separator = self.one(&[", ", "\n"]);
                let entries = (0..self.below(4)).map(|_| {
                    let key =
                        self.one(&["a", "b", "\"c d\"", "(text)", "1", "\"${count}\"", "true"]);
                    let sign = self.one(&[" = ", ": "]);
                    let value = self.any(inner);
                    Tree::Parts(vec![fixed(key), fixed(sign), value])
                });
                let entries = entries.collect();
                let parts = vec![fixed("{ "), Tree::List(entries, separator), fixed(" }")];
                Tree::Expression(Box::new(Tree::Parts(parts)))
            }
            4 => {
                let list = if self.below(2) == 0 {
                    self.list(inner)
                } else {
                    self.object(inner)
                };
                self.names.extend(["k", "v"]);
                let (key, value) = (self.string(inner), self.any(inner));
                let group = self.one(&["", "..."]);
                self.names.truncate(self.names.len() - 2);
                let parts = vec![
                    fixed("{ for k, v in "),
                    list,
                    fixed(" : "),
                    key,
                    fixed(" => "),
                    value,
                    fixed(group),
                    fixed(" }"),
                ];
                Tree::Expression(Box::new(Tree::Parts(parts)))
            }
            5 => {
                let args = (0..self.below(3)).map(|_| self.object(inner)).collect();
                Self::call("merge", args)
            }
            _ => {
                let args = vec![self.list(inner), self.list(inner)];
                Self::call("zipmap", args)
            }
        }
    }

    /// Attributes, heredocs and blocks.
    fn body(&mut self, depth: usize) -> Tree {
        let mut items = Vec::new();
        for at in 0..self.below(4) {
            let name = format!("{}{at}", self.one(&["a", "b-c", "_d", "é"]));
            let item = match self.below(8) {
                0..=2 => {
                    let value = self.any(2);
                    Tree::Parts(vec![fixed(format!("{name} = ")), value, fixed("\n")])
                }
                3..=5 => self.heredoc(&name),
                6 if depth > 0 => {
                    let label =
                        self.one(&["", " \"l\"", " \"a b\" x", " \"$${x}\"", " \"\\u00e9\\n\""]);
                    let inner = self.body(depth - 1);
                    let parts = vec![fixed(format!("{name}{label} {{\n")), inner, fixed("}\n")];
                    Tree::Parts(parts)
                }
                7 => fixed(self.one(&[
                    "# comment\n",
                    "// comment\n",
                    "/* a\n b */\n",
                    "\n",
                    "  \t\n",
                    "x { y = 1 }\n",
                    "x {}\n",
                    "x { y = 1, z = 2 }\n",
                    "x = 1 y = 2\n",
                    "x {\n",
                    "x = [\n1,\n2\n]\n",
                    "x = {\na = 1\nb = 2\n}\n",
                    "x = (1 +\n2)\n",
                    "x = 1 +\n2\n",
                    "x = 1 # c\n",
                    "x /* c */ = 1\r\n",
                    "x y z {\n}\n",
                    "x =\n1\n",
                    "x = \"a\nb\"\n",
                    "x = tuple[*\n]\n",
                    "x = 1.5.2\n",
                    "x = <<E\nE\n",
                    "x = [<<E\na\nE\n]\n",
                    "x = upper(<<E\na\nE\n)\n",
                ])),
                _ => fixed(format!("{name} {{}}\n")),
            };
            items.push(item);
        }
        Tree::List(items, "")
    }

    fn heredoc(&mut self, name: &str) -> Tree {
        let (sign, marker) = (
            self.one(&["<<", "<<-", "<<-"]),
            self.one(&["EOT", "E", "X-1"]),
        );
        let mut lines = Vec::new();
        for _ in 0..self.below(5) {
            let indent = fixed(self.one(&["", "  ", "    ", "\t", "      ", "\u{a0} "]));
            let text = self.template_parts(1, &HEREDOC);
            let end = fixed(self.one(&["\n", "\n", "\n", " \n", "\r\n"]));
            lines.push(Tree::Parts(vec![indent, text, end]));
        }
        let last = self.one(&["", "", "  ", "\t"]);
        let after = self.one(&["", "", "", " ", "\r"]);
        Tree::Parts(vec![
            fixed(format!("{name} = {sign}{marker}\n")),
            Tree::List(lines, ""),
            fixed(format!("{last}{marker}{after}\n")),
        ])
    }
}

/// Literal parts of texts in quotes.
const QUOTED: [&str; 20] = [
    "a",
    " ",
    "  b  ",
    "\\n",
    "\\t x",
    "\\\"q\\\"",
    "\\\\",
    "$",
    "%",
    "$${",
    "%%{",
    "$$",
    "%%",
    "\\u00e9",
    "\\U0001F600",
    "é",
    "}",
    "\\n  \\n",
    "#",
    "\\q",
];
/// Literal parts of heredocs.
const HEREDOC: [&str; 18] = [
    "a",
    " ",
    "  b  ",
    "#!/bin/sh",
    "$",
    "%",
    "$${x}",
    "%%{x}",
    "\\n",
    "\"",
    "EOT",
    "E",
    "E,",
    "",
    "$$",
    "é",
    "}",
    "\t",
];
