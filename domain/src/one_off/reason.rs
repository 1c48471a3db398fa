//! Reasons for failures and rejections.

/// Bytes of a failure reason or rejection reason. Diego's bound; longer ones end in `(truncated)`.
pub const REASON_BYTES_MAX: usize = 1024;

/// Cuts a reason to at most [`REASON_BYTES_MAX`] and marks the cut.
#[must_use]
pub fn reason(text: &str) -> String {
    /// The end of a cut text, as in Diego.
    const CUT: &str = "(truncated)";
    if text.len() <= REASON_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(REASON_BYTES_MAX - CUT.len());
    format!("{}{CUT}", &text[..end])
}
