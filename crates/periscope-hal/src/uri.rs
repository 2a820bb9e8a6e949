//! Device names: `platform` or `platform:device`, as in `sim`, `sim:a2a3`, `opencl:0`.

use std::fmt;
use std::str::FromStr;

use crate::error::OpenError;

/// The name of a device.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DeviceUri {
    scheme: String,
    device: String,
}

impl DeviceUri {
    /// The platform.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The device or profile within the platform; empty for its default.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }
}

impl FromStr for DeviceUri {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<DeviceUri, OpenError> {
        let (scheme, device) = match text.split_once(':') {
            Some((scheme, device)) => (scheme, device),
            None => (text, ""),
        };
        let word = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        let complete = !scheme.is_empty() && (!text.contains(':') || !device.is_empty());
        if complete && word(scheme) && word(device) {
            Ok(DeviceUri { scheme: scheme.into(), device: device.into() })
        } else {
            Err(OpenError::Malformed { uri: text.into() })
        }
    }
}

impl fmt::Display for DeviceUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.scheme)?;
        if self.device.is_empty() { Ok(()) } else { write!(f, ":{}", self.device) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_nonsense_is_refused() {
        for text in ["sim", "sim:a2a3", "sim:a2a3-64k", "opencl:0"] {
            assert_eq!(text.parse::<DeviceUri>().unwrap().to_string(), text);
        }
        for text in ["", ":", "sim:", ":a5", "sim:a:b", "sim a5", "sim/a5"] {
            assert!(matches!(text.parse::<DeviceUri>(), Err(OpenError::Malformed { .. })), "{text}");
        }
    }
}
