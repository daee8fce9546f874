// What pages keep and ask for is bounded by these; docs/limits.md has them too.

/** Rows that a list keeps; the oldest go. */
export const maxRows = 2000;
/** Nodes that are asked for at once after their tasks changed; more are all asked for. */
export const maxNamed = 40;
/** Fills of a session that a plot shows. */
export const maxFills = 40;
/** Characters of a text that is not the page's own, in one line. */
export const maxLine = 500;
/** Characters of a word that is not the page's own and that it has no text for. */
export const maxWord = 64;
/** Agents of a node that are named one by one beside those of others. */
export const maxAgents = 12;
/** Silence after which the connection counts as lost: two beats of the hub. */
export const silence = 30_000;
/** Waits between tries to get it back. */
export const firstRetry = 1_000;
export const lastRetry = 15_000;
/** How long a change may take before it is not known whether it arrived. */
export const changeLimit = 20_000;
/** How often what has changed is asked for again, at most. */
export const refreshEvery = 1_000;
/** Comparisons of lines and words that finding what changed may take. */
export const maxDiffCells = 1_000_000;
/** Lines of a digest that are shown at first. */
export const maxDigestLines = 200;
/** Characters of a text that is not the page's own, where it has room; of a message, at first. */
export const maxPassage = 2000;
/** Messages of a channel that are shown at once. */
export const channelPage = 50;
/** How often what no event tells of is asked for again while somebody looks. */
export const askEvery = 10_000;
/** Queries of the context page at first and with each step back, and all that the hub keeps. */
export const queryPage = 50;
export const maxQueries = 500;
/** Providers and cited frames of one query that are shown. */
export const maxLegs = 128;
export const maxCited = 256;
/** Bytes of what a consent says, and of a goal, as the hub has them. */
export const maxScope = 512;
export const maxGoal = 8 * 1024;
/** The largest budget of a query, in tokens, and the most nodes that it names. */
export const maxContextTokens = 131_072;
export const maxContextNodes = 64;
/** How long a query of all nodes may take; a node has 20 s of it. */
export const queryLimit = 40_000;
/** Events that wait for the next frame of a page in the background. */
export const maxPending = 5000;
/** Tasks that the list of tasks keeps. */
export const maxTasks = 10_000;
/** Tasks that are asked for at once. */
export const taskPage = 200;
/** The largest page of the hub. */
export const maxPage = 1000;
/** Nodes that the dispatch page offers at once; the search finds the others. */
export const maxOffered = 100;
/** Targets of one dispatch, as the hub has it. */
export const maxTargets = 5000;
/** Bytes of a task's text, as the hub has it. */
export const maxText = 1020 * 1024;
/** Targets whose progress the dispatch page shows one by one. */
export const maxProgress = 100;
/** Options of a question that are shown, and characters of an answer. */
export const maxOptions = 50;
export const maxAnswer = 65_536;
/** Questions on their page, and those that are kept there after their end. */
export const maxQuestions = 200;
export const maxClosed = 20;
/** Characters of a long text that are shown at once. */
export const maxShown = 20_000;
/** Bytes of a file that a preview reads. */
export const maxPreviewText = 256 * 1024;
export const maxPreviewImage = 8 * 1024 * 1024;
/** Steps of a task's life that the hub keeps. */
export const maxLife = 64;
/** How often a page shows changes, at most. */
export const frameEvery = 50;
