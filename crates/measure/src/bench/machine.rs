//! The machine that is measured, in words.

use rustix::system::uname;

/// Returns the processor's model, the number of cores and the kernel.
pub fn describe(cores: &str) -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let kernel = uname();
    let processor = model(&text).unwrap_or_else(|| kernel.machine().to_string_lossy().into_owned());
    format!("{processor}, {cores}, Linux {}", kernel.release().to_string_lossy())
}

/// Returns the model that /proc/cpuinfo names. Not all architectures have it.
fn model(text: &str) -> Option<String> {
    let named = text.lines().filter_map(|line| line.split_once(':'));
    let mut models = named.filter(|(name, _)| name.trim() == "model name").map(|(_, model)| model.trim());
    models.next().filter(|model| !model.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_that_of_the_first_processor() {
        let text = "processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\nmodel name\t: Other\n";
        assert_eq!(model(text).as_deref(), Some("AMD EPYC"));
        assert_eq!((model("processor : 0\n"), model("model name :\n"), model("")), (None, None, None));
    }
}
