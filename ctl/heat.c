/* ctl/heat.c - shades, strips of them, and the two views. */
#include "ctl/heat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "ctl/show.h"

enum {
    ANY_WIDTH = 120, /* where no terminal says */
    LEVELS = 10,
    PER_MEAN = 4, /* levels from nothing to the mean */
    FIXED = 38,   /* of a layer's line, before its strips */
    CELL = 5,     /* of the matrix */
    BAR_MIN = 10,
    BAR_MAX = 40,
    DEVICE_MAX = 12,
    HOT = 8 /* experts that are named */
};

struct heat {
    const json_t *o;
    struct show_style st;
    enum heat_kind kind;
    struct buf *out;
    int width, experts, devices, slots;
};

/* ---- shades ---- */

static const struct {
    int back, text;
} ramp[LEVELS] = {{235, 250}, {17, 255}, {18, 255}, {25, 255}, {30, 255},
                  {71, 16},   {143, 16}, {179, 16}, {208, 16}, {196, 255}};

static int level_of(double ratio)
{
    int k = (int)(ratio * PER_MEAN + 1e-9);

    return k < 0 ? 0 : k >= LEVELS ? LEVELS - 1 : k;
}

/* One column. */
static void shade(const struct heat *h, double ratio)
{
    static const char *const block[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    int k = level_of(ratio);

    if (h->kind == HEAT_COLOURS)
        buf_printf(h->out, "\x1b[48;5;%dm \x1b[0m", ramp[k].back);
    else if (h->kind == HEAT_BLOCKS)
        buf_puts(h->out, block[ratio > 0 && k == 0 ? 1 : k > 8 ? 8 : k]);
    else if (ratio > 0)
        buf_printf(h->out, "%d", k);
    else
        buf_putc(h->out, '.');
}

/* Text in the shade of a load; plain where there are no colours. */
static void shaded(const struct heat *h, double ratio, const char *text)
{
    int k = level_of(ratio);

    if (h->kind == HEAT_COLOURS)
        buf_printf(h->out, "\x1b[48;5;%d;38;5;%dm%s\x1b[0m", ramp[k].back, ramp[k].text,
                   text);
    else
        buf_puts(h->out, text);
}

static void dim(const struct heat *h, const char *text)
{
    buf_printf(h->out, "%s%s%s", hue_begin(&h->st, HUE_DIM), text, hue_end(&h->st));
}

static void legend(const struct heat *h)
{
    if (h->kind == HEAT_DIGITS) {
        buf_puts(h->out,
                 "cells: load over the mean in quarters; 4 = the mean, 9 = 2.25 times "
                 "that\nor more, . = none\n");
        return;
    }
    dim(h, "load over the mean  0 ");
    for (int k = 0; k < LEVELS; k++) {
        if (k == PER_MEAN)
            dim(h, " 1 ");
        shade(h, (k + 0.5) / PER_MEAN);
    }
    dim(h, " 2.25 and more\n");
}

/* ---- figures ---- */

static double num(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static double at(const json_t *o, const char *key, int i)
{
    return json_number_value(json_array_get(json_object_get(o, key), (size_t)i));
}

static int map_at(const json_t *layer, int slot)
{
    return (int)json_integer_value(
        json_array_get(json_object_get(layer, "map"), (size_t)slot));
}

static const char *str(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

static double mean(const json_t *o, const char *key, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += at(o, key, i);
    return n > 0 ? sum / n : 0;
}

static double over(double v, double mean) { return mean > 0 ? v / mean : 0; }

static int copies_of(const struct heat *h, const json_t *layer, int expert)
{
    int n = 0;

    for (int i = 0; i < h->devices * h->slots; i++)
        n += map_at(layer, i) == expert;
    return n;
}

static void device_name(const struct heat *h, int i, char out[DEVICE_MAX + 1])
{
    const char *s =
        json_string_value(json_array_get(json_object_get(h->o, "device_ids"), (size_t)i));
    size_t n = s ? strlen(s) : 0;

    /* of a long one its end says more */
    snprintf(out, DEVICE_MAX + 1, "%s", n > DEVICE_MAX ? s + n - DEVICE_MAX : s ? s : "");
    show_clean(out, "");
}

static int device_width(const struct heat *h)
{
    int w = 6; /* DEVICE */

    for (int i = 0; i < h->devices; i++) {
        char name[DEVICE_MAX + 1];

        device_name(h, i, name);
        w = text_columns(name) > w ? text_columns(name) : w;
    }
    return w;
}

/* ---- above all ---- */

/* Has any layer that is shown a load? */
static bool counted(const struct heat *h)
{
    const json_t *l;
    size_t i;

    json_array_foreach(json_object_get(h->o, "layers"), i, l)
    {
        if (mean(l, "load", h->experts) > 0)
            return true;
    }
    return false;
}

static void gain(const struct heat *h, struct buf *b)
{
    if (num(h->o, "moves_measured") > 0)
        buf_printf(
            b, "gain   %.0f moves were to save %.2f ms of a step, and saved %.2f ms\n",
            num(h->o, "moves_measured"), num(h->o, "predicted_us") / 1e3,
            num(h->o, "realised_us") / 1e3);
}

static void head(const struct heat *h)
{
    const json_t *moves = json_object_get(h->o, "moves"), *m;
    const char *name = str(h->o, "instance"), *why = str(h->o, "reason");
    int done = 0, all = (int)json_array_size(moves);
    char bytes[32], *cut;
    struct buf b;
    size_t i;

    buf_init(&b, 0);
    buf_printf(&b,
               "%s  %d experts in %.0f layers on %d devices of %d slots, policy %s%s\n",
               name, h->experts, num(h->o, "n_layers"), h->devices, h->slots,
               str(h->o, "policy"),
               json_is_true(json_object_get(h->o, "frozen")) ? ", frozen" : "");
    show_value(json_object_get(h->o, "bytes_moved"), "bytes", bytes, sizeof(bytes));
    if (num(h->o, "moves_done") + num(h->o, "moves_aborted") > 0)
        buf_printf(&b, "moves  %.0f done, %.0f aborted, %s", num(h->o, "moves_done"),
                   num(h->o, "moves_aborted"), bytes);
    else
        buf_puts(&b, "moves  none yet");
    if (num(h->o, "added_mean_us") != 0)
        buf_printf(&b, "; the last added %.2f ms to a step",
                   num(h->o, "added_mean_us") / 1e3);
    buf_putc(&b, '\n');
    gain(h, &b);
    show_value(json_object_get(h->o, "step_bytes"), "bytes", bytes, sizeof(bytes));
    buf_printf(&b, "copies at most %s beside a step", bytes);
    if (json_is_number(json_object_get(h->o, "slack_us")))
        buf_printf(&b, ", of which the TPOT objective leaves %.2f ms",
                   num(h->o, "slack_us") / 1e3);
    buf_putc(&b, '\n');
    if (!counted(h))
        buf_puts(&b,
                 "loads  none were counted yet: requests, and a moment, are needed\n");
    if (num(h->o, "plan") > 0) {
        json_array_foreach(moves, i, m) done += !strcmp(str(m, "state"), "done");
        buf_printf(&b, "plan   %.0f is under way: %d of %d moves done\n",
                   num(h->o, "plan"), done, all);
    }
    if (*why)
        buf_printf(&b, "last   %s\n", why);
    show_clean(b.p, "\n");
    for (char *p = b.p, *line; p && *p; p += strcspn(p, "\n") + 1) {
        line = xasprintf("%.*s", (int)strcspn(p, "\n"), p);

        cut = text_cut(line, h->width);
        buf_printf(h->out, "%s\n", cut);
        free(cut);
        free(line);
    }
    buf_done(&b);
    buf_putc(h->out, '\n');
}

/* ---- all layers ---- */

/* n loads in `cells` columns; of several in one the highest. */
static void strip(const struct heat *h, const json_t *layer, const char *key, int n,
                  int cells, int wide)
{
    double m = mean(layer, key, n);

    for (int c = 0; c < cells; c++) {
        double most = 0;

        for (int i = c * n / cells; i < (c + 1) * n / cells; i++)
            most = at(layer, key, i) > most ? at(layer, key, i) : most;
        for (int k = 0; k < wide; k++)
            shade(h, over(most, m));
    }
}

static void all_layers(const struct heat *h)
{
    int room = h->width - FIXED - 2, e = h->experts, d = h->devices, wide = 1;
    const json_t *l;
    size_t i;

    if (room < 8)
        room = 8;
    if (e + d > room) {
        d = d < room / 2 ? d : room / 2;
        e = e < room - d ? e : room - d;
    }
    if (h->kind != HEAT_DIGITS && 2 * (e + d) <= room && e == h->experts)
        wide = 2;
    buf_printf(h->out, "%5s  %5s  %6s  %5s  %7s  %-*s  %s\n", "LAYER", "R", "BEFORE",
               "NOW", "COPIES", e * wide > 7 ? e * wide : 7, "EXPERTS", "DEVICES");
    json_array_foreach(json_object_get(h->o, "layers"), i, l)
    {
        buf_printf(h->out, "%5.0f  %5.2f  %6.3f  ", num(l, "layer"), num(l, "imbalance"),
                   num(l, "balancedness_loaded"));
        buf_printf(h->out, "%s%5.3f%s  %7.0f  ",
                   num(l, "balancedness") > num(l, "balancedness_loaded") + 0.005
                       ? hue_begin(&h->st, HUE_GOOD)
                       : "",
                   num(l, "balancedness"), hue_end(&h->st), num(l, "copies"));
        strip(h, l, "load", h->experts, e, wide);
        buf_printf(h->out, "%*s  ", e * wide < 7 ? 7 - e * wide : 0, "");
        strip(h, l, "devices", h->devices, d, wide);
        buf_putc(h->out, '\n');
    }
    buf_putc(h->out, '\n');
    if (e < h->experts || d < h->devices)
        buf_printf(h->out, "several share a cell where there are more: the highest\n");
    buf_puts(h->out, "R: largest over mean load of the experts; BEFORE, NOW: mean over "
                     "largest\nload of the devices with experts as loaded, and now\n");
    legend(h);
}

/* ---- one layer: devices by experts ---- */

static void bar(const struct heat *h, double v, double most, int room)
{
    static const char *const part[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int eighths = most > 0 ? (int)(v / most * room * 8 + 0.5) : 0;

    for (int i = 0; i < eighths / 8; i++)
        buf_puts(h->out, h->kind == HEAT_DIGITS ? "#" : "█");
    if (h->kind != HEAT_DIGITS)
        buf_puts(h->out, part[eighths % 8]);
}

/* What a device's slots take of an expert's load, -1 where it has no copy. */
static double cell(const struct heat *h, const json_t *l, int device, int expert)
{
    for (int s = device * h->slots; s < (device + 1) * h->slots; s++)
        if (map_at(l, s) == expert)
            return at(l, "load", expert) * at(l, "shares", s);
    return -1;
}

static void below(const struct heat *h, const json_t *l, int left)
{
    static const char *const phases[] = {"prefill", "decode"};
    double m = mean(l, "load", h->experts);
    char text[CELL + 8];

    buf_printf(h->out, "%-*s", left, "load");
    for (int e = 0; e < h->experts; e++) {
        snprintf(text, sizeof(text), "%*.2f", CELL - 1, over(at(l, "load", e), m));
        buf_putc(h->out, ' ');
        shaded(h, over(at(l, "load", e), m), text);
    }
    buf_printf(h->out, "\n%-*s", left, "copies");
    for (int e = 0; e < h->experts; e++)
        buf_printf(h->out, "%*d", CELL, copies_of(h, l, e));
    for (int p = 0; p < 2; p++) {
        const json_t *ph = json_object_get(l, phases[p]);
        double all = mean(ph, "assignments", h->experts) * h->experts;

        buf_printf(h->out, "\n%-*s", left, phases[p]);
        for (int e = 0; e < h->experts; e++)
            buf_printf(h->out, "%*.0f%%", CELL - 1,
                       100 * over(at(ph, "assignments", e), all));
        buf_printf(h->out, "  R %.2f", num(ph, "imbalance"));
    }
    buf_putc(h->out, '\n');
}

static void matrix(const struct heat *h, const json_t *l)
{
    int left = device_width(h) + 1;
    int room = h->width - left - CELL * h->experts - 8;
    double m = mean(l, "devices", h->devices), most = 0;
    char name[DEVICE_MAX + 1], text[CELL + 8];

    room = room > BAR_MAX ? BAR_MAX : room;
    for (int d = 0; d < h->devices; d++)
        most = at(l, "devices", d) > most ? at(l, "devices", d) : most;
    buf_printf(h->out, "%-*s", left, "DEVICE");
    for (int e = 0; e < h->experts; e++) {
        snprintf(text, sizeof(text), "E%d", e);
        buf_printf(h->out, "%*s", CELL, text);
    }
    buf_puts(h->out, "   LOAD\n");
    for (int d = 0; d < h->devices; d++) {
        device_name(h, d, name);
        buf_printf(h->out, "%-*s", left, name);
        for (int e = 0; e < h->experts; e++) {
            double v = cell(h, l, d, e);

            if (v < 0)
                snprintf(text, sizeof(text), "%*s", CELL - 1, ".");
            else
                snprintf(text, sizeof(text), "%*.2f", CELL - 1, over(v, m));
            buf_putc(h->out, ' ');
            if (v < 0)
                dim(h, text);
            else
                shaded(h, over(v, m), text);
        }
        snprintf(text, sizeof(text), "%.2f", over(at(l, "devices", d), m));
        buf_puts(h->out, "   ");
        shaded(h, over(at(l, "devices", d), m), text);
        buf_putc(h->out, ' ');
        bar(h, at(l, "devices", d), most, room);
        buf_putc(h->out, '\n');
    }
    buf_putc(h->out, '\n');
    below(h, l, left);
    buf_puts(h->out,
             "\ncells: load of a device's copy over the mean device load; . = no copy\n");
    if (h->kind == HEAT_COLOURS)
        legend(h);
}

/* ---- one layer of many: experts, then devices ---- */

static const json_t *sorted; /* loads that by_load compares by */

static int by_load(const void *a, const void *b)
{
    double x = at(sorted, "load", *(const int *)a),
           y = at(sorted, "load", *(const int *)b);

    return x < y ? 1 : x > y ? -1 : *(const int *)a - *(const int *)b;
}

static void hottest(const struct heat *h, const json_t *l)
{
    int *order = xcalloc((size_t)h->experts, sizeof(*order));
    double m = mean(l, "load", h->experts);

    for (int e = 0; e < h->experts; e++)
        order[e] = e;
    sorted = l;
    qsort(order, (size_t)h->experts, sizeof(*order), by_load);
    buf_puts(h->out, "\nhottest ");
    for (int k = 0, used = 8; k < HOT && k < h->experts; k++) {
        char text[48];
        int n = copies_of(h, l, order[k]);

        snprintf(text, sizeof(text), " E%d %.2f in %d cop%s%s", order[k],
                 over(at(l, "load", order[k]), m), n, n == 1 ? "y" : "ies",
                 k + 1 < HOT && k + 1 < h->experts ? "," : "");
        used += (int)strlen(text);
        if (used > h->width)
            break;
        buf_puts(h->out, text);
    }
    buf_putc(h->out, '\n');
    free(order);
}

static void experts_alone(const struct heat *h, const json_t *l)
{
    int per = (h->width - 6) / 16 * 16;
    double m = mean(l, "load", h->experts);

    per = per < 16 ? 16 : per > 128 ? 128 : per;
    buf_puts(h->out, "EXPERTS\n");
    for (int e = 0; e < h->experts; e += per) {
        buf_printf(h->out, "%5d ", e);
        for (int k = e; k < e + per && k < h->experts; k++)
            shade(h, over(at(l, "load", k), m));
        buf_putc(h->out, '\n');
    }
    hottest(h, l);
}

/* Name, load, and its slots: the expert in each, in the shade of what it takes there. */
static void device_cell(const struct heat *h, const json_t *l, int d, int left)
{
    double m = mean(l, "devices", h->devices);
    char name[DEVICE_MAX + 1], text[16];

    device_name(h, d, name);
    snprintf(text, sizeof(text), "%5.2f", over(at(l, "devices", d), m));
    buf_printf(h->out, "%-*s", left, name);
    shaded(h, over(at(l, "devices", d), m), text);
    for (int s = d * h->slots; s < (d + 1) * h->slots; s++) {
        int e = map_at(l, s);
        double v = e < 0 ? 0 : at(l, "load", e) * at(l, "shares", s);

        if (e < 0)
            snprintf(text, sizeof(text), "%4s", "-");
        else
            snprintf(text, sizeof(text), "%4d", e);
        buf_putc(h->out, ' ');
        shaded(h, over(v * h->slots, m), text);
    }
}

static void devices_alone(const struct heat *h, const json_t *l)
{
    int left = device_width(h) + 1, one = left + 5 + 5 * h->slots + 3;
    int columns = (h->width + 3) / one, rows;

    columns = columns < 1 ? 1 : columns;
    rows = (h->devices + columns - 1) / columns;
    buf_puts(h->out, "\nDEVICES  load over the mean, then the expert in each slot\n");
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < columns && c * rows + r < h->devices; c++) {
            buf_puts(h->out, c ? "   " : "");
            device_cell(h, l, c * rows + r, left);
        }
        buf_putc(h->out, '\n');
    }
}

static void one_layer(const struct heat *h, const json_t *l)
{
    buf_printf(
        h->out,
        "layer %.0f  R %.2f  balancedness %.3f as loaded, %s%.3f now%s  %.0f copies\n\n",
        num(l, "layer"), num(l, "imbalance"), num(l, "balancedness_loaded"),
        hue_begin(&h->st, HUE_BOLD), num(l, "balancedness"), hue_end(&h->st),
        num(l, "copies"));
    if (device_width(h) + 1 + CELL * h->experts + 8 + BAR_MIN <= h->width) {
        matrix(h, l);
        return;
    }
    experts_alone(h, l);
    devices_alone(h, l);
    buf_putc(h->out, '\n');
    legend(h);
}

void heat_instance(const json_t *instance, int layer, const struct show_style *st,
                   enum heat_kind kind, struct buf *out)
{
    struct heat h = {.o = instance,
                     .st = *st,
                     .kind = kind,
                     .out = out,
                     .width = st->width ? st->width : ANY_WIDTH,
                     .experts = (int)num(instance, "n_experts"),
                     .devices = (int)num(instance, "n_devices"),
                     .slots = (int)num(instance, "n_slots")};
    const json_t *l;
    size_t i;

    head(&h);
    if (layer < 0) {
        all_layers(&h);
        return;
    }
    json_array_foreach(json_object_get(instance, "layers"), i, l) one_layer(&h, l);
}
