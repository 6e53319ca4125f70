/*
 * Files, streams, pipes, processes, the environment and random numbers, opened by any thread and used by any
 * other, in a program that was not built for Hiroba. Prints the same wherever its threads run.
 *
 *     cc -O2 -pthread -o files executable_files.c && hiroba run --pthread -n 2 ./files
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, LINES = 3 };

static char directory[] = "/tmp/hiroba-files-XXXXXX";
static char path[64];
static FILE *common, *opened_by[THREADS], *child;
static int descriptors[THREADS], both_ends[2];
static const char *mapped[THREADS];
static pthread_barrier_t all;
static pid_t process;

static void expect(int holds, const char *what)
{
    if (!holds) {
        fprintf(stdout, "wrong: %s (%s)\n", what, strerror(errno));
        exit(1);
    }
}

/* Each thread in turn, while the others wait. */
#define IN_TURN(me) \
    for (int turn = 0; turn < THREADS; pthread_barrier_wait(&all), turn++) \
        if (turn == (me))

static void streams(int me)
{
    IN_TURN(me)
        for (int line = 0; line < LINES; line++)
            fprintf(common, "thread %d, line %d of %d, %.2f %s\n", me, line, LINES, me / 4.0, "by fprintf");
    IN_TURN(me)
    {
        fputs("by fputs, ", common);
        fwrite("by fwrite, ", 1, 11, common);
        fputc('0' + me, common);
        putc('\n', common);
        expect(fflush(common) == 0, "fflush");
    }
    IN_TURN(me)
    {
        printf("thread %d prints: ", me);
        puts("a line");
        putchar('=');
        putchar_unlocked('\n');
        expect(write(STDOUT_FILENO, "", 0) == 0, "write of nothing");
    }
}

static void reading(int me)
{
    if (me == 1) {
        rewind(common);
        int thread, line, lines;
        double quarter;
        char by[16];
        expect(fscanf(common, "thread %d, line %d of %d, %lf by %15s\n", &thread, &line, &lines, &quarter, by) == 5, "fscanf");
        printf("read back: %d %d %d %.2f %s\n", thread, line, lines, quarter, by);
    }
    pthread_barrier_wait(&all);
    IN_TURN(me)
    {
        char text[80];
        expect(fgets(text, sizeof text, common) != NULL, "fgets");
        printf("thread %d reads: %s", me, text);
    }
    if (me == 2) {
        char *line = NULL;
        size_t room = 0, count = 0;
        while (getline(&line, &room, common) > 0)
            count++;
        printf("%zu lines are left, at the end: %d\n", count, feof(common) != 0);
        free(line);
        expect(fclose(common) == 0, "fclose in another thread");
    }
    pthread_barrier_wait(&all);
}

static void handed_over(int me)
{
    const int next = (me + 1) % THREADS;
    char name[96], text[32] = "";
    snprintf(name, sizeof name, "%s/of-%d", directory, me);
    descriptors[me] = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    expect(descriptors[me] >= 0, "open");
    pthread_barrier_wait(&all);
    snprintf(text, sizeof text, "written by %d", me);
    expect(write(descriptors[next], text, 16) == 16, "write to another thread's file");
    pthread_barrier_wait(&all);
    struct stat status;
    expect(fstat(descriptors[me], &status) == 0 && status.st_size == 16, "fstat");
    expect(pread(descriptors[me], text, 16, 0) == 16, "pread");
    expect(lseek(descriptors[me], 0, SEEK_CUR) == 16, "lseek");
    mapped[me] = mmap(NULL, 16, PROT_READ, MAP_PRIVATE, descriptors[me], 0);
    expect(mapped[me] != MAP_FAILED, "mmap");
    IN_TURN(me)
        printf("of %d: %s\n", me, text);
    IN_TURN(me)
        printf("mapped by %d: %s\n", next, mapped[next]);
    opened_by[me] = fdopen(descriptors[me], "r");
    pthread_barrier_wait(&all);
    expect(fclose(opened_by[next]) == 0, "fclose of another thread's stream");
    pthread_barrier_wait(&all);
    errno = 0;
    expect(read(descriptors[me], text, 1) == -1 && errno == EBADF, "a closed file");
    pthread_barrier_wait(&all); /* then others may open files of these numbers */
    expect(open("/no/such/file", O_RDONLY) == -1 && errno == ENOENT, "errno");
}

static void pipes(int me)
{
    if (me == 3)
        expect(pipe(both_ends) == 0, "pipe");
    pthread_barrier_wait(&all);
    if (me == 0) {
        char word[6] = "";
        expect(read(both_ends[0], word, 5) == 5, "a read that waits"); /* written later, elsewhere */
        printf("through a pipe: %s\n", word);
    } else if (me == 1) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        expect(write(both_ends[1], "hello", 5) == 5, "write to a pipe");
    }
    pthread_barrier_wait(&all);
    if (me == 1)
        child = popen("echo from a child", "r");
    pthread_barrier_wait(&all);
    if (me == 2) {
        char text[32] = "";
        expect(child && fgets(text, sizeof text, child), "popen in another thread");
        printf("%s", text);
    }
    pthread_barrier_wait(&all);
    if (me == 3)
        expect(pclose(child) == 0, "pclose");
    IN_TURN(me)
        expect(system("exit 3") == 3 << 8, "system");
}

static void process_wide(int me)
{
    char name[16], value[16];
    snprintf(name, sizeof name, "HIROBA_SET_%d", me);
    snprintf(value, sizeof value, "by %d", me);
    expect(setenv(name, value, 1) == 0, "setenv");
    expect(getpid() == process, "one process");
    pthread_barrier_wait(&all);
    snprintf(name, sizeof name, "HIROBA_SET_%d", (me + 1) % THREADS);
    IN_TURN(me)
        printf("%s is set %s, HOME %s\n", name, getenv(name), getenv("HOME") ? "too" : "not");
    IN_TURN(me)
        printf("random: %d %ld %f %ld\n", rand(), random(), drand48(), lrand48());
    if (me == 2) {
        int files = 0;
        DIR *list = opendir(directory);
        expect(list != NULL, "opendir");
        while (readdir(list))
            files++;
        expect(closedir(list) == 0, "closedir");
        printf("%d entries\n", files);
        expect(chdir(directory) == 0, "chdir");
    }
    pthread_barrier_wait(&all);
    char where[64];
    expect(getcwd(where, sizeof where) && strcmp(where, directory) == 0, "one working directory");
    snprintf(where, sizeof where, "of-%d", me);
    expect(unlink(where) == 0, "unlink");
}

static void *work(void *number)
{
    const int me = (int)(long)number;
    streams(me);
    reading(me);
    handed_over(me);
    pipes(me);
    process_wide(me);
    return NULL;
}

int main(void)
{
    process = getpid();
    expect(mkdtemp(directory) != NULL, "mkdtemp");
    snprintf(path, sizeof path, "%s/common", directory);
    common = fopen(path, "w+");
    expect(common != NULL, "fopen");
    srand(7), srand48(7);
    pthread_barrier_init(&all, NULL, THREADS);
    pthread_t threads[THREADS];
    for (long i = 1; i < THREADS; i++)
        expect(pthread_create(&threads[i], NULL, work, (void *)i) == 0, "pthread_create");
    work((void *)0);
    for (int i = 1; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    expect(unlink(path) == 0 && rmdir(directory) == 0, "rmdir");
    puts("files, streams and processes are the job's");
    return 0;
}
