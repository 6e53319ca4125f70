//! What may be wrong: with what a peer says, and with a protocol.

use hiroba_base::PageId;
use hiroba_wire::WireError;
use thiserror::Error;

/// A peer said something that the protocol does not allow: a fault of Hiroba's, never of the program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// The bytes are no message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A diff's runs do not fit the page.
    #[error(transparent)]
    Diff(#[from] crate::diff::DiffError),
    /// The message does not fit the state.
    #[error("expected {expected}, got {got}")]
    Unexpected {
        /// What the state allows.
        expected: Expected,
        /// What came.
        got: String,
    },
}

/// What a message must be that comes in some state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Expected {
    /// A message of the protocol.
    #[error("a message of the protocol")]
    ProtocolMessage,
    /// A message of sequential consistency.
    #[error("a message of sequential consistency")]
    SequentialMessage,
    /// A message of eager release consistency.
    #[error("a message of eager release consistency")]
    EagerMessage,
    /// A message of lazy release consistency.
    #[error("a message of lazy release consistency")]
    LazyMessage,
    /// A message of home-based LRC.
    #[error("a message of home-based LRC")]
    HomeBasedMessage,
    /// About pages that are mapped onto their home's frames only operations on words, and their answers.
    #[error(
        "about pages that are mapped onto their home's frames only operations on words, and their answers"
    )]
    MappedPagesMessage,
    /// An atomic's result only after a request.
    #[error("an atomic's result only after a request")]
    RequestedAtomic,
    /// A word's result only after a request.
    #[error("a word's result only after a request")]
    RequestedWord,
    /// A page only after a request.
    #[error("a page only after a request")]
    RequestedPage,
    /// A page that was asked for.
    #[error("a page that was asked for")]
    PageAskedFor,
    /// A page that its home was asked for.
    #[error("a page that its home was asked for")]
    PageItsHomeWasAskedFor,
    /// The whole page.
    #[error("the whole page")]
    WholePage,
    /// One page.
    #[error("one page")]
    OnePage,
    /// All bytes of a page.
    #[error("all bytes of a page")]
    AllBytesOfPages,
    /// No bytes but those of the pages.
    #[error("no bytes but those of the pages")]
    NoOtherBytes,
    /// Words of the page.
    #[error("words of the page")]
    WordOfPage,
    /// An allocated page.
    #[error("an allocated page")]
    AllocatedPage,
    /// Pages by their first granule.
    #[error("pages by their first granule")]
    FirstGranule,
    /// An answer about allocated pages.
    #[error("an answer about allocated pages")]
    AnswerAboutAllocatedPages,
    /// Requests for pages that are homed here.
    #[error("requests for pages that are homed here")]
    RequestAtHome,
    /// Requests to the page's home.
    #[error("requests to the page's home")]
    RequestToHome,
    /// Requests for pages that are here.
    #[error("requests for pages that are here")]
    RequestToHolder,
    /// Requests for the pages managed here.
    #[error("requests for the pages managed here")]
    RequestToManager,
    /// Requests of nodes without the page.
    #[error("requests of nodes without the page")]
    RequestWithoutCopy,
    /// Requests for what has been written.
    #[error("requests for what has been written")]
    RequestForWritten,
    /// Requests for intervals that have ended.
    #[error("requests for intervals that have ended")]
    RequestForEndedIntervals,
    /// What a home was asked for.
    #[error("what a home was asked for")]
    AskedHome,
    /// Intervals that have ended.
    #[error("intervals that have ended")]
    EndedIntervals,
    /// What leaves each page in a row of its protocol's state table: seen to in builds with debug assertions.
    #[error("what leaves each page in a row of its protocol's state table")]
    RowOfStateTable,
    /// Diffs that were asked for.
    #[error("diffs that were asked for")]
    AskedDiffs,
    /// An answer to a request for diffs.
    #[error("an answer to a request for diffs")]
    AnswerToDiffsRequest,
    /// Answers to this node's diffs.
    #[error("answers to this node's diffs")]
    AnswerToOwnDiffs,
    /// Answers to what this home has told.
    #[error("answers to what this home has told")]
    AnswerOfToldCopies,
    /// Diffs of pages that are homed here.
    #[error("diffs of pages that are homed here")]
    DiffsToHome,
    /// A writer's diffs in the order of its intervals.
    #[error("a writer's diffs in the order of its intervals")]
    DiffsInOrder,
    /// Diffs that no other copy holds.
    #[error("diffs that no other copy holds")]
    OnlyDiffs,
    /// A diff's own interval in its version.
    #[error("a diff's own interval in its version")]
    DiffInItsVersion,
    /// Versions that only grow.
    #[error("versions that only grow")]
    GrowingVersions,
    /// A copyset of other nodes.
    #[error("a copyset of other nodes")]
    CopysetOfOthers,
    /// An invalidation of a copy.
    #[error("an invalidation of a copy")]
    InvalidationOfCopy,
    /// An invalidation of copies.
    #[error("an invalidation of copies")]
    InvalidationOfCopies,
    /// An update of copies.
    #[error("an update of copies")]
    UpdateOfCopies,
    /// An answer only to an invalidation.
    #[error("an answer only to an invalidation")]
    AnswerToInvalidation,
    /// Copies of changed pages given up.
    #[error("copies of changed pages given up")]
    ChangedCopiesGivenUp,
    /// The owner where the manager is the last to have asked.
    #[error("the owner where the manager is the last to have asked")]
    OwnerOfLastRequest,
    /// The content of pages that this node lacks.
    #[error("the content of pages that this node lacks")]
    LastHomesContent,
    /// Moves that this home has proposed.
    #[error("moves that this home has proposed")]
    ProposedMoves,
    /// Word of moves that were proposed.
    #[error("word of moves that were proposed")]
    WordOfProposedMoves,
    /// Moves of allocated pages to another home.
    #[error("moves of allocated pages to another home")]
    MovesToOtherHomes,
    /// Pages whose home this node is to be.
    #[error("pages whose home this node is to be")]
    MovesToHere,
    /// Pages that have moved on.
    #[error("pages that have moved on")]
    LaterMoves,
    /// News of pages whose base is here.
    #[error("news of pages whose base is here")]
    NewsToBase,
    /// Homes that stay.
    #[error("homes that stay")]
    HomesThatStay,
    /// One arrival in the present collective of each node right below.
    #[error("one arrival in the present collective of each node right below")]
    OneArrivalOfEachBelow,
    /// A departure from the present collective, from the node above.
    #[error("a departure from the present collective, from the node above")]
    DepartureFromAbove,
    /// A departure when everybody below has arrived.
    #[error("a departure when everybody below has arrived")]
    DepartureAfterArrivals,
    /// A lock grant only after a request.
    #[error("a lock grant only after a request")]
    RequestedGrant,
    /// Requests for locks that are managed here.
    #[error("requests for locks that are managed here")]
    RequestToLockManager,
    /// One successor for the lock's tail.
    #[error("one successor for the lock's tail")]
    OneSuccessor,
    /// Another node than the last.
    #[error("another node than the last")]
    AnotherNode,
    /// An answer only to a trylock.
    #[error("an answer only to a trylock")]
    AnswerToTryLock,
    /// A waiting thread.
    #[error("a waiting thread")]
    WaitingThread,
    /// A signal for a thread that waits.
    #[error("a signal for a thread that waits")]
    ThreadToSignal,
    /// A note for a thread that is about to wait.
    #[error("a note for a thread that is about to wait")]
    ThreadAboutToWait,
}

/// A page that fits no row of its protocol's state table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {page} in a row of its protocol's state table, got {is}")]
pub struct Misfit {
    /// The page.
    pub page: PageId,
    /// What the protocol knows of it.
    pub is: String,
}

pub(crate) fn unexpected(expected: Expected, got: String) -> ProtocolError {
    ProtocolError::Unexpected { expected, got }
}
