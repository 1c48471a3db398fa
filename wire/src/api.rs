//! HTTP bodies, with Nomad's field names. One file per noun.
