/*
 * histogram: counts the bytes of a text and the lengths of its words, with all threads.
 *
 *     hiroba cc -O3 -o histogram histogram.c
 *     hiroba run -n 4 ./histogram FILE
 *
 * Read `work` first: it is the whole parallel program. Each thread reads one piece of the file with pread(2)
 * straight into shared memory, so the kernel itself stores to pages that may be on another node. Then the
 * thread counts the bytes of its piece and the words that start there. A word may continue in the next piece,
 * so counting starts when all threads have read.
 *
 * Fitted to pages: each thread reads its piece of the file into pages that no other thread writes, except
 * where two pieces meet. A thread counts in private memory and adds its counts under one lock at the end, so
 * the shared counts travel once for each thread and not once for each word.
 *
 * The text is taken as UTF-8. A word consists of letters with single apostrophes between them; every
 * character beyond ASCII counts as a letter. The length of a word is its number of characters.
 */

#include "common.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *path = NULL;

static void print_help(void)
{
    printf("usage: histogram FILE [--sequential]\n"
           "\n"
           "Counts the bytes of a text and the lengths of its words, and checks the counts.\n"
           "\n"
           "  FILE          a regular file that every node can read\n"
           "  --sequential  one thread, without Hiroba\n"
           "  -h, --help    print this help\n"
           "\n"
           "Exit status: 0 the counts passed their checks, 1 they did not, 2 bad arguments or input.\n");
}

/* ---- Counting -------------------------------------------------------------------------------- */

/* Longer words are counted together, at the last index. */
enum { LENGTHS = 32 };

struct counts {
    uint64_t bytes[256];
    uint64_t words[LENGTHS + 1]; /* by length; none has length 0 */
};

static bool is_letter(unsigned char byte)
{
    return byte >= 0x80 || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

/* Returns true if the byte belongs to a word: if it is a letter, or an apostrophe between two letters. */
static bool is_in_word(const unsigned char *text, size_t size, size_t place)
{
    if (text[place] != '\'')
        return is_letter(text[place]);
    return place > 0 && is_letter(text[place - 1]) && place + 1 < size && is_letter(text[place + 1]);
}

/* Counts the bytes of a piece of the text and the words that start there. */
static void count(const unsigned char *text, size_t size, struct span piece, struct counts *counts)
{
    for (size_t place = piece.first; place < piece.end; place++) {
        counts->bytes[text[place]]++;
        if (!is_in_word(text, size, place) || (place > 0 && is_in_word(text, size, place - 1)))
            continue;
        size_t characters = 0;
        for (size_t end = place; end < size && is_in_word(text, size, end); end++)
            characters += (text[end] & 0xc0) != 0x80; /* not the middle of a character */
        /* A word of continuation bytes only is not UTF-8; it counts as one character. */
        characters += characters == 0;
        counts->words[characters < LENGTHS ? characters : LENGTHS]++;
    }
}

/* ---- The parallel program -------------------------------------------------------------------- */

enum { SUM_LOCK };

/* The state that all threads share, and the file that they read. */
struct shared {
    unsigned char *text;
    size_t size;
    struct counts *counts;
    uint64_t *missing; /* bytes that could not be read */
    int file;
};

static double reading;
static struct clocks elapsed;
static size_t threads;

/* Reads a piece of the file into shared memory. Returns the number of bytes that could not be read. */
static size_t read_piece(const struct shared *s, struct span piece)
{
    size_t place = piece.first;
    while (place < piece.end) {
        ssize_t got = pread(s->file, s->text + place, piece.end - place, (off_t)place);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        place += (size_t)got;
    }
    return piece.end - place;
}

static void work(void *argument)
{
    const struct shared *s = argument;
    const struct span piece = own_share(s->size);
    struct counts own;
    memset(&own, 0, sizeof own);
    barrier();
    struct clocks start = clocks();
    size_t missing = read_piece(s, piece);
    barrier();
    double read_all = seconds();
    count(s->text, s->size, piece, &own);
    lock(SUM_LOCK);
    *s->missing += missing;
    for (size_t byte = 0; byte < 256; byte++)
        s->counts->bytes[byte] += own.bytes[byte];
    for (size_t length = 0; length <= LENGTHS; length++)
        s->counts->words[length] += own.words[length];
    unlock(SUM_LOCK);
    barrier();
    if (keeps_time()) {
        reading = read_all - start.wall;
        elapsed = since(start);
        threads = thread_count();
    }
}

/* ---- Verdict --------------------------------------------------------------------------------- */

/* A word that is being read byte by byte. */
struct word {
    size_t characters, bytes;
    bool apostrophe; /* pending: it belongs to the word if a letter follows */
};

static void end_word(struct word *word, struct counts *counts)
{
    size_t length = word->characters > 0 ? word->characters : 1;
    if (word->bytes > 0)
        counts->words[length < LENGTHS ? length : LENGTHS]++;
    *word = (struct word){0, 0, false};
}

/* Counts a stream from start to end, by another method than the threads. */
static bool count_stream(FILE *file, struct counts *counts)
{
    struct word word = {0, 0, false};
    for (int byte = getc(file); byte != EOF; byte = getc(file)) {
        counts->bytes[byte]++;
        if (is_letter((unsigned char)byte)) {
            word.characters += ((byte & 0xc0) != 0x80) + word.apostrophe;
            word.bytes += 1 + word.apostrophe;
            word.apostrophe = false;
        } else if (byte == '\'' && word.bytes > 0 && !word.apostrophe) {
            word.apostrophe = true;
        } else {
            end_word(&word, counts);
        }
    }
    end_word(&word, counts);
    return !ferror(file);
}

static bool check(const struct shared *s)
{
    struct counts own;
    memset(&own, 0, sizeof own);
    if (*s->missing != 0)
        return complain("%.200s: %llu bytes could not be read: is it being changed?", path,
                        (unsigned long long)*s->missing);
    FILE *file = fopen(path, "rb");
    bool read_all = file != NULL && count_stream(file, &own);
    if (!read_all)
        complain("%.200s: %s", path, strerror(errno));
    if (file != NULL)
        fclose(file);
    if (!read_all)
        return false;
    for (size_t byte = 0; byte < 256; byte++)
        if (own.bytes[byte] != s->counts->bytes[byte])
            return complain("byte %zu was counted %llu times and is there %llu times", byte,
                            (unsigned long long)s->counts->bytes[byte],
                            (unsigned long long)own.bytes[byte]);
    for (size_t length = 0; length <= LENGTHS; length++)
        if (own.words[length] != s->counts->words[length])
            return complain("words of length %zu were counted %llu times and are there %llu times",
                            length, (unsigned long long)s->counts->words[length],
                            (unsigned long long)own.words[length]);
    return true;
}

/* ---- The program ----------------------------------------------------------------------------- */

static bool parse(int argc, char **argv, bool *help)
{
    *help = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--sequential") == 0)
            continue;
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0)
            *help = true;
        else if (argv[i][0] == '-' && argv[i][1] != '\0')
            return complain("unknown argument '%.40s'; --help lists those there are", argv[i]);
        else if (path != NULL)
            return complain("one file at a time, not '%.200s' and '%.200s'", path, argv[i]);
        else
            path = argv[i];
    }
    return *help || path != NULL || complain("expected the name of a text; --help says more");
}

static bool open_text(struct shared *s)
{
    struct stat status;
    s->file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* do not wait on a pipe */
    if (s->file < 0 || fstat(s->file, &status) != 0)
        return complain("%.200s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return complain("%.200s: expected a regular file, found a%s", path,
                        S_ISDIR(status.st_mode) ? " directory" : "nother kind");
    s->size = (size_t)status.st_size;
    return true;
}

/* Allocates the shared memory. Every node must have found the same file. */
static bool share(struct shared *s)
{
    uint64_t *sizes = shared_zeroed((size_t)nodes * sizeof *sizes);
    if (sizes == NULL)
        return complain("no shared memory: %s", strerror(errno));
    sizes[node] = s->size;
    barrier();
    for (int other = 0; other < nodes; other++)
        if (sizes[other] != sizes[0])
            return complain("%.200s has %llu bytes on node 0 and %llu on node %d", path,
                            (unsigned long long)sizes[0], (unsigned long long)sizes[other], other);
    s->text = shared_zeroed(s->size > 0 ? s->size : 1);
    s->counts = shared_zeroed(sizeof *s->counts);
    s->missing = shared_zeroed(sizeof *s->missing);
    if (s->text == NULL || s->counts == NULL || s->missing == NULL)
        return complain("no shared memory for %zu bytes: %s", s->size, strerror(errno));
    return true;
}

enum { BAR = 50 };

static void print_bars(const struct counts *counts)
{
    uint64_t most = 1;
    size_t longest = 0;
    for (size_t length = 1; length <= LENGTHS; length++) {
        most = counts->words[length] > most ? counts->words[length] : most;
        longest = counts->words[length] > 0 ? length : longest;
    }
    for (size_t length = 1; length <= longest; length++) {
        size_t bar = (size_t)((double)counts->words[length] / (double)most * BAR + 0.5);
        printf("%5zu%s %12llu  %.*s\n", length, length == LENGTHS ? "+" : " ",
               (unsigned long long)counts->words[length], (int)bar,
               "##################################################");
    }
}

static void report(const struct shared *s)
{
    const struct counts *counts = s->counts;
    uint64_t checksum = 0, words = 0;
    for (size_t byte = 0; byte < 256; byte++)
        checksum += fingerprint(byte, counts->bytes[byte]);
    for (size_t length = 1; length <= LENGTHS; length++) {
        checksum += fingerprint(256 + length, counts->words[length]);
        words += counts->words[length];
    }
    printf("text                     %s\n", path);
    printf("bytes                    %zu\n", s->size);
    printf("lines                    %llu\n", (unsigned long long)counts->bytes['\n']);
    printf("words                    %llu\n", (unsigned long long)words);
    printf("threads                  %zu on %d node%s\n", threads, nodes, nodes == 1 ? "" : "s");
    printf("checksum                 %016llx\n", (unsigned long long)checksum);
    printf("seconds to read          %.6f\n", reading);
    print_clocks(elapsed);
    printf("bytes per second         %.4g\n", elapsed.wall > 0.0 ? (double)s->size / elapsed.wall : 0.0);
    if (words > 0)
        printf("\nwords by length\n");
    print_bars(counts);
    if (words > 0)
        printf("\n");
}

static int run(struct shared *s)
{
    share(s);
    if (!all_agree())
        return 2;
    on_all_threads(work, s);
    elapsed = most_of(elapsed);
    if (node == 0) {
        report(s);
        if (check(s))
            printf("checks                   passed\n");
    }
    return all_agree() ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct shared s = {.file = -1};
    bool help;
    int status = join("histogram", &argc, &argv);
    if (status != 0)
        return status;
    if (parse(argc, argv, &help) && !help)
        open_text(&s);
    if (!all_agree())
        return leave(2);
    if (!help)
        return leave(run(&s));
    if (node == 0)
        print_help();
    return leave(0);
}
