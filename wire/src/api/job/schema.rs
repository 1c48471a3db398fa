//! The schema of a job: one table per block.
//!
//! A row is a field: its name in the API, its name in job files, its kind, and its comparison by `muster job plan`.
//! These tables define the reading of job files and the comparison of versions. The table of a block with a struct of
//! its own is next to that struct. The other tables are here. Nomad's names without an effect here are in
//! [`unsupported`](super::unsupported).

use self::BlockShape::{Free, Many, ManyByName, One};
use self::FieldKind::{Block, Value};
use self::ValueKind::{Bool, Duration, Int, Text, TextMap, Texts};
use crate::api::block::FieldNames;

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    /// A text from a fixed set.
    Word(&'static [&'static str]),
    Int,
    Bool,
    /// A text such as `30s`, or a number of nanoseconds; nanoseconds in the API.
    Duration,
    /// A list of texts.
    Texts,
    /// Keys with texts; as a block or as an attribute.
    TextMap,
}

/// The allowed number of blocks, and their form in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockShape {
    One,
    /// Any number of blocks; a list of objects. A plan compares them as a set: an edited object is listed as deleted
    /// and added.
    Many,
    /// As [`Self::Many`], but each object has a `Name`, by which a plan compares them.
    ManyByName,
    /// Any number of times, labelled; an object of objects by their labels.
    Named,
    /// Once; free keys with values of any shape: a driver's configuration.
    Free,
    /// Any number of times, labelled: `port "http" {}`; `ReservedPorts` or `DynamicPorts`.
    Ports,
    /// Any number of times; `attribute`, `operator`, `value` and their short forms.
    Conditions,
    /// Any number of blocks; each is a group of its own.
    Alone,
}

/// The kind of a field.
#[derive(Clone, Copy, Debug)]
pub enum FieldKind {
    Value(ValueKind),
    Block(BlockShape, &'static Schema),
}

/// The comparison of a field in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// The value is listed by its name in the API, the entries of a map as `Name[key]`. Lists and blocks are not
    /// listed.
    Plain,
    /// As [`Self::Plain`], but only if both versions have the enclosing block.
    InBoth,
    /// A list or a block is an object of this name.
    Object(&'static str),
    /// As [`Self::Object`], and listed in context even if it is unchanged.
    ObjectInContext(&'static str),
    Hidden,
}

/// The effect of a changed task field on instances, as a plan shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Replace,
    InPlace,
    /// As [`Self::InPlace`], unless the field of this name in the block differs.
    InPlaceUnless(&'static str),
}

/// A field of a block.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name in the API; empty if the API has no such field.
    pub json: &'static str,
    /// The name in job files; empty if files have no such field.
    pub file: &'static str,
    pub kind: FieldKind,
    pub compared: Compared,
    /// The effect, if it differs from that of the domain's struct.
    pub effect: Option<Effect>,
    /// The name in the domain's struct; empty if the struct has no such field.
    pub domain: &'static str,
}

/// A field of this name in the API, in job files, and of this kind.
pub(in crate::api) const fn field(
    json: &'static str,
    file: &'static str,
    kind: FieldKind,
) -> Field {
    Field {
        json,
        file,
        kind,
        compared: Compared::Plain,
        effect: None,
        domain: "",
    }
}

impl Field {
    /// The field, compared as this.
    pub(in crate::api) const fn compared(self, compared: Compared) -> Self {
        Self { compared, ..self }
    }

    /// The field, compared as an object of this name.
    pub(in crate::api) const fn plan(self, name: &'static str) -> Self {
        self.compared(Compared::Object(name))
    }

    /// The field, not compared.
    pub(in crate::api) const fn hidden(self) -> Self {
        self.compared(Compared::Hidden)
    }

    /// Sets the effect that a plan shows for the field.
    pub(in crate::api) const fn plan_effect(self, effect: Effect) -> Self {
        Self {
            effect: Some(effect),
            ..self
        }
    }

    /// The field, which holds this field of the domain's struct.
    pub(in crate::api) const fn of(self, domain: &'static str) -> Self {
        Self { domain, ..self }
    }
}

/// The schema of a kind of block.
#[derive(Debug)]
pub struct Schema {
    /// The fields of the API that the label becomes; empty if there is no label.
    pub label: &'static [&'static str],
    pub fields: &'static [Field],
    /// Attributes that must be there.
    pub required: &'static [&'static str],
    /// Names in the API with their texts for fields that the file omits.
    pub defaults: &'static [(&'static str, &'static str)],
    /// The order in which a plan lists objects; other objects come first.
    pub plan_order: &'static [&'static str],
    /// The most blocks in a list of the API.
    pub(in crate::api) list_max: usize,
    /// Names in the API besides those of the table.
    pub(in crate::api) names: FieldNames,
}

impl Schema {
    pub(in crate::api) const EMPTY: Self = Self {
        label: &[],
        fields: &[],
        required: &[],
        defaults: &[],
        plan_order: &[],
        list_max: 0,
        names: FieldNames::NONE,
    };

    /// The field that job files call `name`.
    #[must_use]
    pub fn in_file(&self, name: &str) -> Option<&'static Field> {
        let mut fields = self.fields.iter();
        fields.find(|field| field.file == name && !name.is_empty())
    }

    /// The field that the API calls `name`.
    #[must_use]
    pub fn in_api(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.json == name)
    }

    /// The field that a plan lists as `name`.
    #[must_use]
    pub fn in_plan(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| match field.compared {
            Compared::Object(object) | Compared::ObjectInContext(object) => object == name,
            Compared::Plain | Compared::InBoth | Compared::Hidden => field.json == name,
        })
    }
}

pub(in crate::api) static EMPTY: Schema = Schema::EMPTY;

/// The list for groups of a single task: Nomad lists them before the others.
pub const ALONE: &str = "alone";

#[rustfmt::skip]
pub(super) static UI: Schema = Schema {
    fields: &[
        field("Description", "description", Value(Text)), field("Links", "link", Block(Many, &LINK)),
    ],
    ..Schema::EMPTY
};

static LINK: Schema = Schema {
    fields: &[
        field("Label", "label", Value(Text)),
        field("URL", "url", Value(Text)),
    ],
    ..Schema::EMPTY
};

/// The scaling of a task's resources. Its label is `cpu` or `mem`.
pub(super) static TASK_SCALING: Schema = Schema {
    label: &["Type"],
    fields: &[
        field("Enabled", "enabled", Value(Bool)),
        field("Max", "max", Value(Int)),
        field("Min", "min", Value(Int)),
        field("type", "type", Value(Text)),
        field("Policy", "policy", Block(Free, &EMPTY)),
    ],
    required: &["max"],
    ..Schema::EMPTY
};

pub(super) static IDENTITY: Schema = Schema {
    fields: &[
        field("Audience", "aud", Value(Texts)),
        field("ChangeMode", "change_mode", Value(Text)),
        field("ChangeSignal", "change_signal", Value(Text)),
        field("Env", "env", Value(Bool)),
        field("File", "file", Value(Bool)),
        field("Filepath", "filepath", Value(Text)),
        field("Name", "name", Value(Text)),
        field("TTL", "ttl", Value(Duration)),
    ],
    ..Schema::EMPTY
};

pub(in crate::api) static CNI: Schema = Schema {
    fields: &[field("Args", "args", Value(TextMap))],
    ..Schema::EMPTY
};

pub(super) static DISPATCH_PAYLOAD: Schema = Schema {
    fields: &[field("File", "file", Value(Text))],
    ..Schema::EMPTY
};

// Blocks that no job has here. A plan also compares jobs from Nomad that have them.

pub(in crate::api) static DYNAMIC_PORT: Schema = Schema {
    fields: &[field("Value", "", Value(Int)).hidden()],
    ..Schema::EMPTY
};

pub(super) static MULTIREGION: Schema = Schema {
    fields: &[
        field("Strategy", "", Block(One, &EMPTY)).plan("Strategy"),
        field("Regions", "", Block(ManyByName, &REGION)).plan("Region"),
    ],
    ..Schema::EMPTY
};

static REGION: Schema = Schema {
    fields: &[
        field("Meta", "", Value(TextMap)),
        field("Datacenters", "", Value(Texts)).plan("Datacenters"),
    ],
    ..Schema::EMPTY
};

pub(super) static ARTIFACT: Schema = Schema {
    fields: &[
        field("GetterHeaders", "", Value(TextMap)),
        field("GetterOptions", "", Value(TextMap)),
    ],
    ..Schema::EMPTY
};

pub(super) static VAULT: Schema = Schema {
    fields: &[field("Policies", "", Value(Texts)).plan("Policies")],
    ..Schema::EMPTY
};

pub(super) static MOUNT_OPTIONS: Schema = Schema {
    fields: &[field("MountFlags", "", Value(Texts)).plan("MountFlags")],
    ..Schema::EMPTY
};

pub(super) static SERVICE: Schema = Schema {
    fields: &[
        field("CanaryMeta", "", Value(TextMap)),
        field("Meta", "", Value(TextMap)),
        field("Connect", "", Block(One, &CONNECT)).plan("ConsulConnect"),
        field("CanaryTags", "", Value(Texts)).compared(Compared::ObjectInContext("CanaryTags")),
        field("Checks", "", Block(ManyByName, &CHECK)).plan("Check"),
        field("Tags", "", Value(Texts)).compared(Compared::ObjectInContext("Tags")),
    ],
    plan_order: &["CanaryTags", "Tags", "Check", "ConsulConnect"],
    ..Schema::EMPTY
};

static CHECK: Schema = Schema {
    fields: &[
        field("CheckRestart", "", Block(One, &EMPTY)).plan("CheckRestart"),
        field("Header", "", Block(Free, &EMPTY)).plan("Header"),
    ],
    plan_order: &["Header", "CheckRestart"],
    ..Schema::EMPTY
};

static CONNECT: Schema = Schema {
    fields: &[
        field("Gateway", "", Block(Free, &EMPTY)).plan("Gateway"),
        field("SidecarService", "", Block(One, &SIDECAR_SERVICE)).plan("SidecarService"),
        field("SidecarTask", "", Block(Free, &EMPTY)).plan("SidecarTask"),
    ],
    ..Schema::EMPTY
};

static SIDECAR_SERVICE: Schema = Schema {
    fields: &[
        field("Proxy", "", Block(Free, &EMPTY)).plan("ConsulProxy"),
        field("Tags", "", Value(Texts)).plan("Tags"),
    ],
    ..Schema::EMPTY
};
