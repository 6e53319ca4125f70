//! What remains to be done, each thing once.

/// A set that is emptied from its least element, and that keeps its memory. It has few elements at a time.
#[derive(Debug)]
pub(crate) struct Agenda<T>(Vec<T>);

impl<T> Default for Agenda<T> {
    fn default() -> Agenda<T> {
        Agenda(Vec::new())
    }
}

impl<T: Ord> Agenda<T> {
    pub(crate) fn insert(&mut self, element: T) {
        // In descending order, so that the least is the last.
        if let Err(at) = self.0.binary_search_by(|other| element.cmp(other)) {
            self.0.insert(at, element);
        }
    }

    pub(crate) fn pop_first(&mut self) -> Option<T> {
        self.0.pop()
    }
}

impl<T: Ord> Extend<T> for Agenda<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        elements.into_iter().for_each(|element| self.insert(element));
    }
}

#[cfg(test)]
mod tests {
    use super::Agenda;

    #[test]
    fn elements_come_once_in_ascending_order() {
        let mut agenda = Agenda::default();
        agenda.extend([3, 1, 2, 3, 1]);
        assert_eq!([1, 2, 3].map(Some), core::array::from_fn(|_| agenda.pop_first()));
        assert_eq!(agenda.pop_first(), None);
    }
}
