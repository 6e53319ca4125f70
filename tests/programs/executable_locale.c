/*
 * Locale objects in a program that was not built for Hiroba: threads of all nodes use objects that any of
 * them has made.
 *
 *     cc -O2 -pthread -o locale executable_locale.c && hiroba run --pthread -n 2 ./locale
 */
#define _GNU_SOURCE
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>
#include <wctype.h>

enum { THREADS = 4, OBJECTS = 300 };

static void expect(int holds, const char *what)
{
    if (!holds) {
        printf("wrong: %s\n", what);
        fflush(stdout);
        _exit(1);
    }
}

/* How many characters the C library finds in two bytes: one if they are UTF-8, none in the C locale. */
static long characters(void)
{
    wchar_t text[4];
    return (long)mbstowcs(text, "\xc3\xa9", 4);
}

/* Uses a UTF-8 object by its functions, and as the thread's locale. */
static void *use(void *argument)
{
    const locale_t object = argument;
    expect(!strcmp(nl_langinfo_l(CODESET, object), "UTF-8"), "the code set");
    expect(iswalpha_l(0xe9, object) && towupper_l(0xe9, object) == 0xc9, "classes and mappings");
    expect(strtod_l("1.5", NULL, object) == 1.5, "numbers");
    expect(characters() == -1, "the thread has the C locale");
    const locale_t before = uselocale(object);
    expect(before == LC_GLOBAL_LOCALE, "no object was used before");
    expect(characters() == 1, "the thread uses the object");
    expect(uselocale(before) == object && characters() == -1, "the thread uses it no more");
    return NULL;
}

static void *make(void *name)
{
    return newlocale(LC_CTYPE_MASK, name, NULL);
}

static void *duplicate(void *object)
{
    return duplocale(object);
}

static void *drop(void *object)
{
    freelocale(object);
    return NULL;
}

static void *in_a_thread(void *(*routine)(void *), void *argument)
{
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, routine, argument);
    pthread_join(thread, &result);
    return result;
}

static void use_everywhere(locale_t object)
{
    expect(object != NULL, "an object");
    use(object);
    for (int i = 0; i < THREADS; i++)
        in_a_thread(use, object);
}

static void *use_c(void *argument)
{
    const locale_t object = argument;
    expect(!iswalpha_l(0xe9, object) && strcmp(nl_langinfo_l(CODESET, object), "UTF-8"), "the C locale");
    return NULL;
}

int main(void)
{
    const locale_t mains = newlocale(LC_ALL_MASK, "C.UTF-8", NULL);
    use_everywhere(mains);
    const locale_t others[2] = {in_a_thread(make, "C.UTF-8"), in_a_thread(make, "C.UTF-8")};
    use_everywhere(others[0]);
    use_everywhere(others[1]);
    expect(others[0] != others[1] && others[0] != mains, "each call makes an object");
    const locale_t copy = in_a_thread(duplicate, mains);
    in_a_thread(drop, mains);
    use_everywhere(copy);
    /* A base becomes a part of what is made. */
    const locale_t changed = newlocale(LC_CTYPE_MASK, "C", copy);
    expect(changed != NULL, "an object with a base");
    for (int i = 0; i < THREADS; i++)
        in_a_thread(use_c, changed);
    errno = 0;
    expect(!newlocale(LC_ALL_MASK, "no such locale", NULL) && errno == ENOENT, "an unknown name");
    const locale_t plain = newlocale(LC_ALL_MASK, "C", NULL);
    for (int i = 0; i < THREADS; i++)
        in_a_thread(use_c, plain);
    for (int i = 0; i < OBJECTS; i++)
        freelocale(newlocale(LC_ALL_MASK, "C.UTF-8", NULL));
    use_everywhere(others[0]);
    puts("objects of the locale ok");
    return 0;
}
