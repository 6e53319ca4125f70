/*
 * jacobi: how heat spreads over a square plate whose edge is kept at given temperatures.
 *
 *     hiroba cc -O3 -march=native -o jacobi jacobi.c -lm
 *     hiroba run -n 4 ./jacobi -i data/seattle-hourly-normals.txt -o plate.png
 *
 * Read `relax` first: it is the whole parallel program. A step replaces every inner point by the mean of its
 * four neighbours (Jacobi's iteration for Laplace's equation, which is diffusion in time steps of a quarter
 * of the squared distance of points). There are two copies of the plate; steps read and write them
 * alternately. Each thread writes a block of rows and reads one more row on each side, so one barrier in each
 * step is the only synchronisation.
 *
 * Fitted to pages: the layout is not fitted: the rows of a thread are contiguous, so only the pages where two
 * blocks meet have two users. The two copies remove one of two barriers in each step, and a reader and a
 * writer never use the same copy of a row at once.
 *
 * The edge is a year, clockwise from the top left corner: normal temperatures of every hour. At the start
 * each inner point is a blend of the four edge points in its row and column (a Coons patch), which the steps
 * then smooth.
 *
 * No result depends on the number of threads: each point is computed from the same four points in the same
 * order, and sums run along rows and then over rows.
 */

#include "common.h"
#include "picture.h"

static long n = 2048, steps = 100;
static const char *input_path = NULL, *picture_path = NULL;

static const struct option OPTIONS[] = {
    {"-n", "a number of points an edge", 3, 32768, &n, NULL},
    {"-s", "a number of steps", 0, 1000000000, &steps, NULL},
    {"-i", "the name of a file of temperatures", 0, 0, NULL, &input_path},
    {"-o", "the name of a picture", 0, 0, NULL, &picture_path},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: jacobi [-n POINTS] [-s STEPS] [-i FILE] [-o FILE.png] [--sequential]\n"
           "\n"
           "Lets heat spread from the edge of a square plate, and checks the result.\n"
           "\n"
           "  -n POINTS     so many points an edge [%ld]\n"
           "  -s STEPS      so many steps [%ld]\n"
           "  -i FILE       the temperatures along the edge, clockwise from the top left corner, as\n"
           "                numbers between blanks; # begins a comment (every node reads the file)\n"
           "                [a wave with three crests and four smaller ones]\n"
           "  -o FILE.png   write a picture (by node 0)\n"
           "  --sequential  one thread, without Hiroba\n"
           "  -h, --help    print this help\n"
           "\n"
           "Exit status: 0 the result passed its checks, 1 it did not, 2 bad arguments or input.\n",
           n, steps);
}

/* ---- The edge -------------------------------------------------------------------------------- */

/* The temperatures as read: private memory with the same contents on every node. */
static double *readings = NULL;
static size_t readings_count = 0;
enum { READINGS_MAX = 1000 * 1000 };

/* The temperatures of the edge's points, clockwise from the top left corner, and their extremes. */
static double *edge = NULL;
static double coldest, hottest;

/* Reads the words of a line. */
static bool read_line(char *line, long number)
{
    for (char *word = strtok(line, " \t\r\n"); word != NULL; word = strtok(NULL, " \t\r\n")) {
        char *end;
        if (word[0] == '#')
            return true;
        double value = strtod(word, &end);
        if (*end != '\0' || !(fabs(value) <= 1e6))
            return complain("%.200s:%ld: expected a temperature from -1e6 to 1e6, found '%.40s'",
                            input_path, number, word);
        if (readings_count == READINGS_MAX)
            return complain("%.200s:%ld: more than %d temperatures", input_path, number,
                            READINGS_MAX);
        readings[readings_count++] = value;
    }
    return true;
}

static bool read_file(void)
{
    char line[4096];
    long number = 0;
    bool good = true;
    FILE *file = fopen(input_path, "r");
    if (file == NULL)
        return complain("%.200s: %s", input_path, strerror(errno));
    while (good && fgets(line, sizeof line, file) != NULL) {
        number++;
        if (strchr(line, '\n') == NULL && strlen(line) == sizeof line - 1)
            good = complain("%.200s:%ld: the line is longer than %zu characters", input_path,
                            number, sizeof line - 2);
        else
            good = read_line(line, number);
    }
    if (good && ferror(file))
        good = complain("%.200s: %s", input_path, strerror(errno));
    fclose(file);
    if (good && readings_count < 4)
        good = complain("%.200s: expected 4 temperatures or more, found %zu", input_path,
                        readings_count);
    return good;
}

static void make_wave(void)
{
    const double turn = 2.0 * 3.14159265358979323846;
    readings_count = 3600;
    for (size_t i = 0; i < readings_count; i++) {
        double place = turn * (double)i / (double)readings_count;
        readings[i] = 15.0 + 10.0 * sin(3.0 * place) + 4.0 * cos(7.0 * place);
    }
}

/* Spreads the readings evenly over the edge. The first reading follows the last one. */
static bool make_edge(void)
{
    size_t points = 4 * (size_t)(n - 1);
    readings = malloc(READINGS_MAX * sizeof *readings);
    edge = malloc(points * sizeof *edge);
    if (readings == NULL || edge == NULL)
        return complain("no memory for the %zu points of the edge", points);
    if (input_path == NULL)
        make_wave();
    else if (!read_file())
        return false;
    for (size_t point = 0; point < points; point++) {
        double place = (double)point * (double)readings_count / (double)points;
        size_t before = (size_t)place % readings_count, after = (before + 1) % readings_count;
        double share = place - floor(place);
        edge[point] = (1.0 - share) * readings[before] + share * readings[after];
        coldest = point == 0 ? edge[point] : fmin(coldest, edge[point]);
        hottest = point == 0 ? edge[point] : fmax(hottest, edge[point]);
    }
    return true;
}

/* The four sides, read from left to right and from top to bottom. */
static double top(size_t column) { return edge[column]; }
static double right(size_t row) { return edge[(size_t)(n - 1) + row]; }
static double bottom(size_t column) { return edge[3 * (size_t)(n - 1) - column]; }
static double left(size_t row) { return row == 0 ? edge[0] : edge[4 * (size_t)(n - 1) - row]; }

/* The temperature of a point before the first step. Points of the edge keep it. */
static double initial(size_t row, size_t column)
{
    const size_t last = (size_t)(n - 1);
    if (row == 0 || row == last)
        return row == 0 ? top(column) : bottom(column);
    if (column == 0 || column == last)
        return column == 0 ? left(row) : right(row);
    double x = (double)column / (double)last, y = (double)row / (double)last;
    double sides = (1.0 - y) * top(column) + y * bottom(column) +
                   (1.0 - x) * left(row) + x * right(row);
    double corners = (1.0 - y) * ((1.0 - x) * top(0) + x * top(last)) +
                     y * ((1.0 - x) * bottom(0) + x * bottom(last));
    return fmin(fmax(sides - corners, coldest), hottest); /* a blend may overshoot */
}

/* ---- The parallel program -------------------------------------------------------------------- */

enum { SUM_LOCK };

/* The state that all threads share. */
struct plate {
    double *copies[2];
    double *row_energy; /* of each row */
    struct sums {
        uint64_t checksum, outside; /* points that are colder or hotter than the whole edge */
        double residual;            /* the largest change of a point in one more step */
    } *sums;
};

static double set_up, energy_before, energy_after;
static struct clocks elapsed;
static size_t threads;

/* Computes one row of a step: each inner point becomes the mean of its neighbours. */
static void relax_row(double *restrict to, const double *restrict above,
                      const double *restrict row, const double *restrict below, size_t columns)
{
    for (size_t j = 1; j + 1 < columns; j++)
        to[j] = 0.25 * ((above[j] + below[j]) + (row[j - 1] + row[j + 1]));
}

/* The inner rows of a block. */
static struct span inner(struct span rows)
{
    rows.first += rows.first == 0;
    rows.end -= rows.end == (size_t)n;
    return rows;
}

static void relax(const struct plate *p, struct span own)
{
    const size_t width = (size_t)n;
    for (long step = 0; step < steps; step++) {
        const double *from = p->copies[step % 2];
        double *to = p->copies[1 - step % 2];
        for (size_t i = own.first; i < own.end; i++)
            relax_row(to + i * width, from + (i - 1) * width, from + i * width,
                      from + (i + 1) * width, width);
        barrier();
    }
}

/* Writes rows of the state before the first step. */
static void fill(double *plate, struct span rows)
{
    for (size_t i = rows.first; i < rows.end; i++)
        for (size_t j = 0; j < (size_t)n; j++)
            plate[i * (size_t)n + j] = initial(i, j);
}

/*
 * Half the sum of the squared differences of neighbours (Dirichlet's energy), which each step of diffusion
 * reduces. Collective.
 */
static double energy(const struct plate *p, struct span rows, const double *plate)
{
    for (size_t i = rows.first; i < rows.end; i++) {
        const double *row = plate + i * (size_t)n, *below = i + 1 < (size_t)n ? row + n : row;
        double sum = 0.0;
        for (size_t j = 0; j < (size_t)n; j++) {
            double down = below[j] - row[j], along = j + 1 < (size_t)n ? row[j + 1] - row[j] : 0.0;
            sum += 0.5 * (down * down + along * along);
        }
        p->row_energy[i] = sum;
    }
    barrier();
    double sum = 0.0;
    for (size_t i = 0; i < (size_t)n; i++)
        sum += p->row_energy[i];
    barrier(); /* no thread overwrites what another one still adds up */
    return sum;
}

/* Adds up a thread's rows for the checks. */
static void add_up(const struct plate *p, struct span rows, const double *plate)
{
    struct sums own = {0, 0, 0.0};
    for (size_t i = rows.first; i < rows.end; i++) {
        const double *row = plate + i * (size_t)n;
        for (size_t j = 0; j < (size_t)n; j++) {
            own.checksum += fingerprint(i * (size_t)n + j, bits_of(row[j]));
            own.outside += !(row[j] >= coldest && row[j] <= hottest);
            if (i == 0 || i == (size_t)n - 1 || j == 0 || j == (size_t)n - 1)
                continue;
            double next = 0.25 * ((row[j - n] + row[j + n]) + (row[j - 1] + row[j + 1]));
            own.residual = fmax(own.residual, fabs(next - row[j]));
        }
    }
    lock(SUM_LOCK);
    p->sums->checksum += own.checksum;
    p->sums->outside += own.outside;
    p->sums->residual = fmax(p->sums->residual, own.residual);
    unlock(SUM_LOCK);
}

static void work(void *argument)
{
    const struct plate *p = argument;
    const struct span rows = own_share((size_t)n);
    const bool first = thread_number() == 0;
    double start = seconds();
    fill(p->copies[0], rows);
    memcpy(p->copies[1] + rows.first * (size_t)n, p->copies[0] + rows.first * (size_t)n,
           length_of(rows) * (size_t)n * sizeof(double)); /* the edges stay */
    barrier();
    struct clocks filled = clocks();
    relax(p, inner(rows));
    if (keeps_time()) {
        elapsed = since(filled);
        set_up = filled.wall - start;
    }

    double *last = p->copies[steps % 2], *other = p->copies[1 - steps % 2];
    double after = energy(p, rows, last);
    add_up(p, rows, last);
    fill(other, rows);
    barrier();
    double before = energy(p, rows, other);
    if (first) {
        threads = thread_count();
        energy_before = before;
        energy_after = after;
    }
}

/* ---- Verdict --------------------------------------------------------------------------------- */

/* The points from `reach` before the first to `reach` after the last, as far as they exist. */
static struct span widened(struct span points, size_t reach)
{
    size_t last = (size_t)n - points.end;
    return (struct span){points.first > reach ? points.first - reach : 0,
                         points.end + (reach < last ? reach : last)};
}

/*
 * Compares some rows and columns with a separate computation by this thread. After s steps a point depends
 * only on points at a distance of at most s. So only these are computed again from the start, and the result
 * must have the same bits.
 */
static bool check_part(const struct plate *p, struct span rows, struct span columns)
{
    size_t reach = (size_t)(steps < n ? steps : n);
    struct span all_rows = widened(rows, reach), all_columns = widened(columns, reach);
    size_t width = length_of(all_columns), height = length_of(all_rows);
    double *copies[2] = {malloc(width * height * sizeof(double)),
                         malloc(width * height * sizeof(double))};
    bool good = copies[0] != NULL && copies[1] != NULL;
    if (!good)
        complain("no memory to check %zu x %zu points", height, width);
    for (size_t i = 0; i < height && good; i++)
        for (size_t j = 0; j < width; j++)
            copies[0][i * width + j] = copies[1][i * width + j] =
                initial(all_rows.first + i, all_columns.first + j);
    for (long step = 0; step < steps && good; step++) /* errors at the rim do not reach the compared points */
        for (size_t i = 1; i + 1 < height; i++)
            relax_row(copies[1 - step % 2] + i * width, copies[step % 2] + (i - 1) * width,
                      copies[step % 2] + i * width, copies[step % 2] + (i + 1) * width, width);
    for (size_t i = rows.first; i < rows.end && good; i++)
        for (size_t j = columns.first; j < columns.end && good; j++) {
            double is = p->copies[steps % 2][i * (size_t)n + j];
            double should =
                copies[steps % 2][(i - all_rows.first) * width + (j - all_columns.first)];
            if (!(is == should))
                good = complain("the point in row %zu, column %zu is %.17g and should be %.17g", i,
                                j, is, should);
        }
    free(copies[0]);
    free(copies[1]);
    return good;
}

/* Up to this many updates of points (about a second), the check computes the whole plate again. */
static const double UPDATES_CHECKED = 1e9;
/* Otherwise it computes this many places of this size, where the blocks of two threads meet. */
enum { PLACES = 8, PLACE = 4 };

/* Checks the points. The first place is checked even if that takes as long as all steps on one thread. */
static bool check_points(const struct plate *p)
{
    double points = (double)n * (double)n, edge = 2.0 * (double)steps + 2 * PLACE + 1;
    if (points * (double)steps <= UPDATES_CHECKED)
        return check_part(p, (struct span){0, (size_t)n}, (struct span){0, (size_t)n});
    double checked = 0.0;
    for (size_t place = 0; place < PLACES && checked <= UPDATES_CHECKED; place++) {
        size_t seam = threads > 1 ? 1 + place * (threads - 1) / PLACES : 0;
        size_t row = threads > 1 ? share_of((size_t)n, seam, threads).first
                                 : place * (size_t)(n - 1) / (PLACES - 1);
        size_t column = (2 * place + 1) * (size_t)n / (2 * PLACES);
        row = row < (size_t)n ? row : (size_t)n - 1;
        if (!check_part(p, widened((struct span){row, row + 1}, PLACE),
                        widened((struct span){column, column + 1}, PLACE)))
            return false;
        checked += fmin(points, edge * edge) * (double)steps;
    }
    return true;
}

static bool check(const struct plate *p)
{
    if (p->sums->outside != 0)
        return complain("%llu points are colder or hotter than all of the edge",
                        (unsigned long long)p->sums->outside);
    /* A step cannot raise the energy; the tolerance is the rounding of sums of n * n terms. */
    if (!(energy_after <= energy_before * (1.0 + 1e-12 * (double)n)))
        return complain("the energy rose from %.17g to %.17g", energy_before, energy_after);
    return check_points(p);
}

/* ---- Colours --------------------------------------------------------------------------------- */

static double shown_coldest, shown_hottest;

/*
 * Colours from cold to hot, 0 to 1: a path through the colour space Oklab (B. Ottosson, 2020) along which
 * lightness rises evenly while the hue turns from blue over red to yellow, so that equal differences of
 * temperature look equal.
 */
static struct light temperature_colour(double share)
{
    double lightness = 0.24 + 0.70 * share, angle = (265.0 + 200.0 * share) * 0.017453292519943295;
    double chroma = 0.10 + 0.34 * share * (1.0 - share) + 0.02 * share;
    double a = chroma * cos(angle), b = chroma * sin(angle);
    double l = lightness + 0.3963377774 * a + 0.2158037573 * b;
    double m = lightness - 0.1055613458 * a - 0.0638541728 * b;
    double s = lightness - 0.0894841775 * a - 1.2914855480 * b;
    l = l * l * l, m = m * m * m, s = s * s * s;
    return (struct light){4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
                          -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
                          -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s};
}

/* The colours of temperatures, with a line at each twentieth of their range. */
static struct light colour(const void *data, size_t row, size_t column)
{
    const double *plate = data;
    double span = shown_hottest - shown_coldest, scale = span > 0.0 ? 1.0 / span : 0.0;
    double here = scale * (plate[row * (size_t)n + column] - shown_coldest);
    struct light light = temperature_colour(fmin(fmax(here, 0.0), 1.0));
    if (row + 1 == (size_t)n || column + 1 == (size_t)n)
        return light;
    double along = scale * (plate[row * (size_t)n + column + 1] - shown_coldest);
    double down = scale * (plate[(row + 1) * (size_t)n + column] - shown_coldest);
    bool crossed = floor(20.0 * here) != floor(20.0 * along) ||
                   floor(20.0 * here) != floor(20.0 * down);
    /* Lines that are too close to each other would hide the colours. */
    bool crowded = 20.0 * hypot(along - here, down - here) > 0.1;
    return crossed && !crowded ? mixed(light, (struct light){0.0, 0.0, 0.0}, 0.4) : light;
}

/* Draws the plate. The colours span the range inside, because the daily changes on the edge would make the
 * rest pale. */
static bool draw(const double *plate)
{
    size_t margin = (size_t)n / 32 + 1, end = (size_t)n - margin;
    shown_coldest = hottest;
    shown_hottest = coldest;
    for (size_t i = margin; i < end; i++) {
        for (size_t j = margin; j < end; j++) {
            shown_coldest = fmin(shown_coldest, plate[i * (size_t)n + j]);
            shown_hottest = fmax(shown_hottest, plate[i * (size_t)n + j]);
        }
    }
    return write_picture(picture_path, (size_t)n, colour, plate);
}

/* ---- The program ----------------------------------------------------------------------------- */

static bool share(struct plate *p)
{
    size_t bytes = (size_t)n * (size_t)n * sizeof(double);
    p->copies[0] = shared_zeroed(bytes);
    p->copies[1] = shared_zeroed(bytes);
    p->row_energy = shared_zeroed((size_t)n * sizeof(double));
    p->sums = shared_zeroed(sizeof *p->sums);
    if (p->copies[0] == NULL || p->copies[1] == NULL || p->row_energy == NULL || p->sums == NULL)
        return complain("no shared memory for %ld x %ld points: %s", n, n, strerror(errno));
    return true;
}

static void report(const struct plate *p)
{
    double updates = (double)(n - 2) * (double)(n - 2) * (double)steps;
    printf("edge                     %s\n", input_path != NULL ? input_path : "a wave");
    printf("points                   %ld x %ld\n", n, n);
    printf("steps                    %ld\n", steps);
    printf("threads                  %zu on %d node%s\n", threads, nodes, nodes == 1 ? "" : "s");
    printf("initial energy           %.17g\n", energy_before);
    printf("final energy             %.17g\n", energy_after);
    printf("residual                 %.17g\n", p->sums->residual);
    printf("checksum                 %016llx\n", (unsigned long long)p->sums->checksum);
    printf("seconds to set up        %.6f\n", set_up);
    print_clocks(elapsed);
    printf("points per second        %.4g\n", elapsed.wall > 0.0 ? updates / elapsed.wall : 0.0);
}

static int run(void)
{
    struct plate p;
    share(&p);
    if (!all_agree())
        return 1;
    on_all_threads(work, &p);
    elapsed = most_of(elapsed);
    if (node == 0) {
        report(&p);
        if (check(&p))
            printf("checks                   passed\n");
        if (picture_path != NULL)
            draw(p.copies[steps % 2]);
    }
    return all_agree() ? 0 : 1;
}

int main(int argc, char **argv)
{
    bool help;
    int status = join("jacobi", &argc, &argv);
    if (status != 0)
        return status;
    bool good = parse_options(OPTIONS, argc, argv, &help) && !help && make_edge();
    if (good && picture_path != NULL && node == 0)
        can_write(picture_path);
    if (!all_agree())
        return leave(2);
    if (!help)
        return leave(run());
    if (node == 0)
        print_help();
    return leave(0);
}
