/* ctl/plot.c - axes, curves, the target and the chosen rate.
 *
 * Drawn at twice the size in points, so that it is sharp on a dense screen. Shares run
 * from 0 to 100 % whatever the data, so that two pictures can be laid beside each other.
 */
#include "ctl/plot.h"

#include <math.h>
#include <stdio.h>

#include <cairo/cairo.h>

#include "base/buf.h"
#include "base/err.h"

enum { SCALE = 2, WIDTH = 760, HEIGHT = 470, LEFT = 66, RIGHT = 24, TOP = 64, LINE = 14 };

struct colour {
    double r, g, b;
};
static const struct colour ink = {0.13, 0.14, 0.17}, dim = {0.45, 0.47, 0.5},
                           grid = {0.89, 0.9, 0.92}, blue = {0.07, 0.33, 0.66},
                           orange = {0.85, 0.45, 0.08}, green = {0.1, 0.55, 0.35},
                           red = {0.76, 0.12, 0.15};

struct canvas {
    cairo_t *c;
    double x0, y0, w, h; /* the area of the data, y0 its bottom */
    double max;          /* rate at the right end */
};

static void set(cairo_t *c, struct colour k) { cairo_set_source_rgb(c, k.r, k.g, k.b); }

static double x_of(const struct canvas *v, double rate)
{
    return v->x0 + v->w * rate / v->max;
}

static double y_of(const struct canvas *v, double share) { return v->y0 - v->h * share; }

/* align: 0 from x on, 0.5 around it, 1 up to it. */
static void text(cairo_t *c, double x, double y, double align, double size, bool bold,
                 struct colour k, const char *s)
{
    cairo_text_extents_t e;

    cairo_select_font_face(c, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(c, size);
    cairo_text_extents(c, s, &e);
    set(c, k);
    cairo_move_to(c, x - align * e.x_advance, y);
    cairo_show_text(c, s);
}

static double width_of(cairo_t *c, double size, const char *s)
{
    cairo_text_extents_t e;

    cairo_select_font_face(c, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(c, size);
    cairo_text_extents(c, s, &e);
    return e.x_advance;
}

static void line(cairo_t *c, double x, double y, double x2, double y2, double width,
                 struct colour k)
{
    set(c, k);
    cairo_set_line_width(c, width);
    cairo_move_to(c, x, y);
    cairo_line_to(c, x2, y2);
    cairo_stroke(c);
}

/* ---- axes ---- */

/* 1, 2 or 5 times a power of ten, so that about five fit. */
static double tick_of(double max)
{
    double p = pow(10, floor(log10(max / 5))), m = max / 5 / p;

    return p * (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10);
}

static void axes(const struct canvas *v)
{
    double step = tick_of(v->max);
    char s[32];

    for (int i = 0; i <= 5; i++) {
        line(v->c, v->x0, y_of(v, i / 5.0), v->x0 + v->w, y_of(v, i / 5.0), 1, grid);
        snprintf(s, sizeof(s), "%d %%", i * 20);
        text(v->c, v->x0 - 8, y_of(v, i / 5.0) + 4, 1, 11, false, dim, s);
    }
    for (double r = 0; r <= v->max * 1.0001; r += step) {
        line(v->c, x_of(v, r), v->y0, x_of(v, r), v->y0 + 4, 1, dim);
        snprintf(s, sizeof(s), "%g", r < step / 2 ? 0 : r);
        text(v->c, x_of(v, r), v->y0 + 17, 0.5, 11, false, dim, s);
    }
    line(v->c, v->x0, v->y0, v->x0 + v->w, v->y0, 1, dim);
    text(v->c, v->x0 + v->w / 2, v->y0 + 34, 0.5, 12, false, ink,
         "arrival rate (requests/s)");
    cairo_save(v->c);
    cairo_translate(v->c, 17, v->y0 - v->h / 2);
    cairo_rotate(v->c, -M_PI / 2);
    text(v->c, 0, 0, 0.5, 12, false, ink, "requests within the SLO (%)");
    cairo_restore(v->c);
}

/* ---- data ---- */

enum curve { CURVE_ALL, CURVE_TTFT, CURVE_TPOT };

static double share_of(const struct plot_point *p, enum curve which)
{
    return which == CURVE_TTFT   ? p->ttft_share
           : which == CURVE_TPOT ? p->tpot_share
                                 : p->share;
}

static const double dots[] = {5, 3};

static void curve(const struct canvas *v, const struct plot *p, enum curve which,
                  struct colour k)
{
    set(v->c, k);
    cairo_set_line_width(v->c, which == CURVE_ALL ? 2 : 1.3);
    if (which != CURVE_ALL)
        cairo_set_dash(v->c, dots, 2, 0);
    cairo_new_path(v->c);
    for (int i = 0; i < p->n; i++)
        cairo_line_to(v->c, x_of(v, p->v[i].rate), y_of(v, share_of(&p->v[i], which)));
    cairo_stroke(v->c);
    cairo_set_dash(v->c, NULL, 0, 0);
}

/* A point: filled where the queue stood, hollow where it grew. */
static void mark(const struct canvas *v, double x, double y, bool hollow)
{
    cairo_new_sub_path(v->c);
    cairo_arc(v->c, x, y, 4, 0, 2 * M_PI);
    cairo_set_source_rgb(v->c, 1, 1, 1);
    cairo_fill_preserve(v->c);
    set(v->c, blue);
    cairo_set_line_width(v->c, 1.8);
    if (!hollow)
        cairo_fill_preserve(v->c);
    cairo_stroke(v->c);
}

static void points(const struct canvas *v, const struct plot *p)
{
    for (int i = 0; i < p->n; i++) {
        const struct plot_point *q = &p->v[i];
        double x = x_of(v, q->rate), lo = y_of(v, q->low), hi = y_of(v, q->high);

        line(v->c, x, lo, x, hi, 1.2, blue);
        line(v->c, x - 4, lo, x + 4, lo, 1.2, blue);
        line(v->c, x - 4, hi, x + 4, hi, 1.2, blue);
        mark(v, x, y_of(v, q->share), q->saturated);
    }
}

/* The wanted share across, the chosen rate down. */
static void goal(const struct canvas *v, const struct plot *p)
{
    char s[96];

    cairo_set_dash(v->c, dots, 2, 0);
    line(v->c, v->x0, y_of(v, p->target), v->x0 + v->w, y_of(v, p->target), 1.3, red);
    if (p->chosen > 0)
        line(v->c, x_of(v, p->chosen), v->y0, x_of(v, p->chosen), v->y0 - v->h, 1.3,
             green);
    cairo_set_dash(v->c, NULL, 0, 0);
    if (p->chosen <= 0)
        return;
    snprintf(s, sizeof(s), "goodput %.3g/s", p->chosen);
    /* left of its line where the right has no room */
    if (x_of(v, p->chosen) + width_of(v->c, 12, s) * 1.1 + 8 > v->x0 + v->w)
        text(v->c, x_of(v, p->chosen) - 6, v->y0 - 8, 1, 12, true, green, s);
    else
        text(v->c, x_of(v, p->chosen) + 6, v->y0 - 8, 0, 12, true, green, s);
}

/* ---- legend, in one row above the data ---- */

static double entry(const struct canvas *v, double x, const char *s, struct colour k,
                    bool dashed, int symbol)
{
    double y = TOP - 18;

    if (symbol) {
        mark(v, x + 11, y, symbol == 2);
    } else {
        if (dashed)
            cairo_set_dash(v->c, dots, 2, 0);
        line(v->c, x, y, x + 22, y, dashed ? 1.3 : 2, k);
        cairo_set_dash(v->c, NULL, 0, 0);
    }
    text(v->c, x + 27, y + 4, 0, 11, false, ink, s);
    return x + 27 + width_of(v->c, 11, s) + 16;
}

static void legend(const struct canvas *v, const struct plot *p)
{
    double x = v->x0;
    bool saturated = false;
    char s[48];

    for (int i = 0; i < p->n; i++)
        saturated |= p->v[i].saturated;
    x = entry(v, x, "whole SLO, 95 % interval", blue, false, 1);
    if (p->has_ttft && p->has_tpot) {
        x = entry(v, x, "TTFT alone", orange, true, 0);
        x = entry(v, x, "TPOT alone", ink, true, 0);
    }
    snprintf(s, sizeof(s), "target %.4g %%", p->target * 100);
    x = entry(v, x, s, red, true, 0);
    if (saturated)
        entry(v, x, "queue grew", blue, false, 2);
}

static cairo_status_t put_bytes(void *arg, const unsigned char *p, unsigned n)
{
    buf_add(arg, p, n);
    return CAIRO_STATUS_SUCCESS;
}

static void draw(cairo_t *c, const struct plot *p)
{
    double below = 46 + LINE * p->n_small + 8;
    struct canvas v = {.c = c,
                       .x0 = LEFT,
                       .y0 = HEIGHT - below,
                       .w = WIDTH - LEFT - RIGHT,
                       .h = HEIGHT - below - TOP,
                       .max = 0};

    for (int i = 0; i < p->n; i++)
        v.max = p->v[i].rate > v.max ? p->v[i].rate : v.max;
    v.max = v.max > 0 ? v.max * 1.05 : 1;
    cairo_set_source_rgb(c, 1, 1, 1);
    cairo_paint(c);
    text(c, LEFT, 26, 0, 15, true, ink, p->title);
    axes(&v);
    goal(&v, p);
    if (p->has_ttft && p->has_tpot) {
        curve(&v, p, CURVE_TTFT, orange);
        curve(&v, p, CURVE_TPOT, ink);
    }
    curve(&v, p, CURVE_ALL, blue);
    points(&v, p);
    legend(&v, p);
    for (int i = 0; i < p->n_small; i++)
        text(c, LEFT, v.y0 + 54 + LINE * i, 0, 9.5, false, dim, p->small[i]);
}

int plot_png(const struct plot *p, struct buf *out, struct err *e)
{
    cairo_surface_t *s =
        cairo_image_surface_create(CAIRO_FORMAT_RGB24, WIDTH * SCALE, HEIGHT * SCALE);
    cairo_t *c = cairo_create(s);
    cairo_status_t rc;

    cairo_scale(c, SCALE, SCALE);
    draw(c, p);
    rc = cairo_status(c);
    if (rc == CAIRO_STATUS_SUCCESS)
        rc = cairo_surface_write_to_png_stream(s, put_bytes, out);
    cairo_destroy(c);
    cairo_surface_destroy(s);
    cairo_debug_reset_static_data(); /* its fonts: nothing is left for a leak checker */
    if (rc != CAIRO_STATUS_SUCCESS)
        return err_set(e, ERR_INTERNAL, "the picture could not be drawn: %s",
                       cairo_status_to_string(rc));
    return 0;
}
