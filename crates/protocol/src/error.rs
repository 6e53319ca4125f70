//! Errors in messages of peers, and in a protocol's state.

use hiroba_base::PageId;
use hiroba_wire::WireError;
use thiserror::Error;

/// A message of a peer that the protocol does not allow: an error in Hiroba, never in the program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// The bytes are no message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A diff's runs do not fit the page.
    #[error(transparent)]
    Diff(#[from] crate::diff::DiffError),
    /// The message does not fit the node's state.
    #[error("expected {expected}, got {got}")]
    Unexpected {
        /// The message that the state allows.
        expected: Expected,
        /// The message that came.
        got: String,
    },
}

/// The message that a state expects.
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
    /// For pages that are mapped onto their home's frames: only operations on words, and their answers.
    #[error(
        "about pages that are mapped onto their home's frames only operations on words, and their answers"
    )]
    MappedPagesMessage,
    /// The result of a requested atomic operation.
    #[error("an atomic's result only after a request")]
    RequestedAtomic,
    /// The result of a requested operation on a word.
    #[error("a word's result only after a request")]
    RequestedWord,
    /// A requested page.
    #[error("a page only after a request")]
    RequestedPage,
    /// A page of the request that the message answers.
    #[error("a page that was asked for")]
    PageAskedFor,
    /// A page that was requested from its home.
    #[error("a page that its home was asked for")]
    PageItsHomeWasAskedFor,
    /// The content of the whole page.
    #[error("the whole page")]
    WholePage,
    /// Exactly one page.
    #[error("one page")]
    OnePage,
    /// All bytes of a page.
    #[error("all bytes of a page")]
    AllBytesOfPages,
    /// No bytes besides those of the pages.
    #[error("no bytes but those of the pages")]
    NoOtherBytes,
    /// A word inside the page.
    #[error("words of the page")]
    WordOfPage,
    /// An allocated page.
    #[error("an allocated page")]
    AllocatedPage,
    /// Pages named by their first granule.
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
    /// Requests for pages that this node has.
    #[error("requests for pages that are here")]
    RequestToHolder,
    /// Requests for pages whose manager is this node.
    #[error("requests for the pages managed here")]
    RequestToManager,
    /// Requests of nodes that do not have the page.
    #[error("requests of nodes without the page")]
    RequestWithoutCopy,
    /// Requests for versions that have been written.
    #[error("requests for what has been written")]
    RequestForWritten,
    /// Requests for intervals that have ended.
    #[error("requests for intervals that have ended")]
    RequestForEndedIntervals,
    /// A report of a home that this node has asked to catch up.
    #[error("what a home was asked for")]
    AskedHome,
    /// Intervals that have ended.
    #[error("intervals that have ended")]
    EndedIntervals,
    /// A message that leaves each page in a row of its protocol's state table. Checked in builds with debug
    /// assertions.
    #[error("what leaves each page in a row of its protocol's state table")]
    RowOfStateTable,
    /// Requested diffs.
    #[error("diffs that were asked for")]
    AskedDiffs,
    /// An answer to a request for diffs.
    #[error("an answer to a request for diffs")]
    AnswerToDiffsRequest,
    /// Answers to diffs of this node.
    #[error("answers to this node's diffs")]
    AnswerToOwnDiffs,
    /// Answers to changes that this home has sent to copies.
    #[error("answers to what this home has told")]
    AnswerOfToldCopies,
    /// Diffs of pages that are homed here.
    #[error("diffs of pages that are homed here")]
    DiffsToHome,
    /// A writer's diffs in the order of its intervals.
    #[error("a writer's diffs in the order of its intervals")]
    DiffsInOrder,
    /// Diffs that no other copy contains, which their writer must not discard.
    #[error("diffs that no other copy holds")]
    OnlyDiffs,
    /// A diff's own interval in its version.
    #[error("a diff's own interval in its version")]
    DiffInItsVersion,
    /// Versions whose entries only grow.
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
    /// A request for the page itself, of which no copies are given.
    #[error("a request for the page itself, of which no copies are given")]
    RequestForOwnership,
    /// An order to give up a page that is under release consistency, from its home.
    #[error("an order of its home to give up a page under release consistency")]
    ConversionByHome,
    /// A report that a page was given up, once from each node that was told to do so.
    #[error("one report of each node that a page was given up")]
    ReportOfConversion,
    /// One request at a time of each node for a page that is about to be under sequential consistency.
    #[error("one request at a time for a page that is about to change its protocol")]
    OneRequestOfEachNode,
    /// A message about several pages only if one protocol keeps them coherent.
    #[error("pages of one protocol")]
    PagesOfOneProtocol,
    /// Given-up copies only of the pages that have changed.
    #[error("copies of changed pages given up")]
    ChangedCopiesGivenUp,
    /// The owner, if the manager's own request was the last one.
    #[error("the owner where the manager is the last to have asked")]
    OwnerOfLastRequest,
    /// The content of pages that this node lacks.
    #[error("the content of pages that this node lacks")]
    LastHomesContent,
    /// Moves that this home has proposed.
    #[error("moves that this home has proposed")]
    ProposedMoves,
    /// Reports about moves that were proposed.
    #[error("word of moves that were proposed")]
    WordOfProposedMoves,
    /// Moves of allocated pages to another home.
    #[error("moves of allocated pages to another home")]
    MovesToOtherHomes,
    /// Pages whose next home is this node.
    #[error("pages whose home this node is to be")]
    MovesToHere,
    /// Later moves of pages.
    #[error("pages that have moved on")]
    LaterMoves,
    /// Reports about pages whose base is this node.
    #[error("news of pages whose base is here")]
    NewsToBase,
    /// Homes that do not move.
    #[error("homes that stay")]
    HomesThatStay,
    /// One arrival of each node directly below at the present collective.
    #[error("one arrival in the present collective of each node right below")]
    OneArrivalOfEachBelow,
    /// Contributions of nodes that arrive with the sender.
    #[error("contributions of the sender and the nodes below it")]
    ContributionsFromBelow,
    /// Pages that are homed on the sender and that no node has touched.
    #[error("pages of the sender that nobody has touched")]
    FreshPages,
    /// One answer of each other node about pages that are being placed.
    #[error("one answer of each node about pages that are being placed")]
    AnswerToPlacing,
    /// The answer of the root of the tree to a request.
    #[error("an answer of the root to a request")]
    AnswerOfRoot,
    /// Requests of homes to the root of the tree, about the present collective or an earlier one.
    #[error("requests to the root about collectives that have begun")]
    RequestToRoot,
    /// A departure from the present collective, from the node above.
    #[error("a departure from the present collective, from the node above")]
    DepartureFromAbove,
    /// A departure after all nodes below have arrived.
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
    /// A node other than the previous requester and than this node.
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
    /// The page's state in the protocol.
    pub is: String,
}

pub(crate) fn unexpected(expected: Expected, got: String) -> ProtocolError {
    ProtocolError::Unexpected { expected, got }
}
