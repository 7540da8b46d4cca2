/* daemon/serve/forward_part.c - which part of a model a rank has: sizes, where they
 * begin, and what cannot be cut.
 *
 * Heads, KV heads, widths and the vocabulary are cut by tp, layers by pp; experts are
 * shared out by ep, whole or (ep = cp x adp) each cut by tp. Refusals are sentences that
 * name what does not divide. Pure; any thread. */
#include "daemon/serve/forward_weights.h"

#include "base/err.h"
#include "kernels/comm.h"

static int at_least_one(int n) { return n > 0 ? n : 1; }

void forward_dims_of(const struct model_info *i, const struct forward_part *p,
                     struct forward_dims *ret)
{
    struct forward_dims d = {.tp = at_least_one(p->tp), .pp = at_least_one(p->pp)};
    int64_t from, to;

    d.tp_at = p->tp_at;
    d.pp_at = p->pp_at;
    /* the earlier stages are the shorter, since the last has the head */
    int each = i->n_layer / d.pp, more = i->n_layer % d.pp, late = d.pp - more;
    d.n_layer = each + (d.pp_at >= late);
    d.first_layer = each * d.pp_at + (d.pp_at > late ? d.pp_at - late : 0);
    d.first = d.pp_at == 0;
    d.last = d.pp_at == d.pp - 1;
    d.n_head = i->n_head / d.tp;
    d.head_from = d.n_head * d.tp_at;
    d.n_kv_head = at_least_one(i->n_kv_head / d.tp);
    d.kv_from = (int)((int64_t)i->n_kv_head * d.tp_at / d.tp);
    d.n_piece = p->as_tp > d.tp ? p->as_tp / d.tp : 1;
    d.q_dim = model_q_dim(i) / d.tp;
    d.o_dim = model_o_dim(i) / d.tp;
    d.kv_dim = d.n_kv_head * i->head_dim;
    d.cp = at_least_one(p->cp);
    d.cp_at = p->cp_at;
    d.cp_u = at_least_one(p->cp_u);
    d.cp_u_at = p->cp_u_at;
    d.n_attn_head = d.n_head / d.cp_u;
    d.n_attn_kv = at_least_one(d.n_kv_head / d.cp_u);
    d.attn_kv_from = d.n_kv_head * d.cp_u_at / d.cp_u;
    d.n_ff = i->n_ff / d.tp;
    d.ff_from = d.n_ff * d.tp_at;
    /* experts: apart over all ranks, or over groups of tp that share every one's width */
    int ep = at_least_one(p->ep), groups = d.cp * d.cp_u * at_least_one(p->adp);
    int cut = d.etp = ep > groups ? 1 : d.tp, cut_at = cut > 1 ? d.tp_at : 0;
    comm_shard(i->moe.n_expert, at_least_one(p->ep), p->ep_at, &from, &to);
    d.expert_from = (int)from;
    d.n_home = (int)(to - from);
    d.n_slot = (i->moe.n_expert + at_least_one(p->ep) - 1) / at_least_one(p->ep);
    d.n_slot += i->moe.n_expert ? p->experts.spare : 0;
    d.n_ff_expert = i->moe.n_ff / cut;
    d.ff_expert_from = d.n_ff_expert * cut_at;
    d.n_ff_shared = i->moe.n_ff_shared / cut;
    d.ff_shared_from = d.n_ff_shared * cut_at;
    comm_shard(i->n_vocab, d.tp, d.tp_at, &from, &to);
    d.vocab_from = (int)from;
    d.n_vocab = (int)(to - from);
    *ret = d;
}

void forward_part_of(const struct layout *l, struct forward_part *ret)
{
    *ret = (struct forward_part){.tp = l->tp,
                                 .pp = l->pp,
                                 .ep = l->ep,
                                 .cp = l->cp / layout_cp_heads(l),
                                 .cp_u = layout_cp_heads(l),
                                 .adp = l->adp,
                                 .cp_method = l->cp_method,
                                 .sp = l->sp};
}

/* Can it round as as_tp and as_cp ranks do? As these are cut, so are its pieces. */
static int check_as(const struct model_info *i, const struct forward_part *p,
                    struct err *e)
{
    int tp = at_least_one(p->tp), as = at_least_one(p->as_tp);
    int cp = at_least_one(p->cp), as_cp = at_least_one(p->as_cp);
    bool ffn = !i->moe.n_expert || i->moe.n_dense;

    if (as > 1 && as != tp && (as % tp || tp & (tp - 1)))
        return err_param(
            e, ERR_INVALID, "layout",
            "%d tp ranks cannot round as %d (round_as.tp): their number must "
            "be a power of two that divides it",
            tp, as);
    if (as > 1 && (i->n_head % as || (i->n_kv_head % as && as % i->n_kv_head) ||
                   (ffn && i->n_ff % as)))
        return err_param(e, ERR_INVALID, "layout",
                         "%d tp ranks (round_as.tp) could not share the model: %d heads, "
                         "%d KV heads, an FFN of %d",
                         as, i->n_head, i->n_kv_head, i->n_ff);
    if (as_cp > 1 && (as_cp > FORWARD_CP_MAX || (cp > 1 && cp != as_cp)))
        return err_param(e, ERR_INVALID, "layout",
                         "%d ranks that share positions cannot round as %d (round_as.cp)",
                         cp, as_cp);
    if (as_cp > 1 && cp > 1 && p->cp_method == CP_STRIPED)
        return err_param(e, ERR_INVALID, "layout",
                         "round_as.cp %d: stripes share positions one by one, and "
                         "nothing else rounds so",
                         as_cp);
    return 0;
}

static int check_cp(const struct model_info *i, const struct forward_part *p,
                    struct err *e)
{
    int tp = at_least_one(p->tp), u = at_least_one(p->cp_u), cp = at_least_one(p->cp) * u;
    int heads = i->n_head / tp, kv = at_least_one(i->n_kv_head / tp);

    if (cp > FORWARD_CP_MAX)
        return err_param(e, ERR_RANGE, "layout", "cp %d is more than %d", cp,
                         FORWARD_CP_MAX);
    if (heads % u)
        return err_param(e, ERR_INVALID, "layout",
                         "sharing heads over %d cp ranks does not divide a rank's %d "
                         "attention heads",
                         u, heads);
    if (kv % u && u % kv)
        return err_param(e, ERR_INVALID, "layout",
                         "sharing heads over %d cp ranks neither divides a rank's %d KV "
                         "heads nor is a multiple of them",
                         u, kv);
    return 0;
}

int forward_part_check(const struct model_info *i, const struct forward_part *p,
                       struct err *e)
{
    int tp = at_least_one(p->tp), pp = at_least_one(p->pp), ep = at_least_one(p->ep);
    int cp = at_least_one(p->cp) * at_least_one(p->cp_u), adp = at_least_one(p->adp);

    if (adp > 1 && !i->moe.n_expert)
        return err_param(e, ERR_INVALID, "layout",
                         "adp %d: a dense model has no experts to share over groups",
                         adp);
    if (ep > 1 && !i->moe.n_expert)
        return err_param(e, ERR_INVALID, "layout",
                         "ep %d (tp %d): a dense model has no experts", ep, tp);
    if (i->moe.n_expert && ep != tp * cp * adp && ep != cp * adp)
        return err_param(
            e, ERR_INVALID, "layout",
            "ep %d with tp %d, cp %d and adp %d: the engine runs experts over "
            "all of them, ep %d, or over cp and adp, each cut by tp, ep %d",
            ep, tp, cp, adp, tp * cp * adp, cp * adp);
    if (ep > i->moe.n_expert && ep > 1)
        return err_param(e, ERR_INVALID, "layout", "ep %d is more than the %d experts",
                         ep, i->moe.n_expert);
    if (p->experts.spare < 0 || (p->experts.spare && ep == 1) ||
        (p->experts.spare &&
         p->experts.spare + (i->moe.n_expert + ep - 1) / ep > i->moe.n_expert))
        return err_param(e, ERR_INVALID, "spare",
                         "%d spare slots on each of %d expert ranks: none without ranks "
                         "that experts stand apart on, and at most %d experts in all on "
                         "one",
                         p->experts.spare, ep, i->moe.n_expert);
    if (i->moe.n_expert && ep == cp * adp &&
        (i->moe.n_ff % tp || i->moe.n_ff_shared % tp))
        return err_param(e, ERR_INVALID, "layout",
                         "tp %d does not divide the experts' width of %d (shared %d)", tp,
                         i->moe.n_ff, i->moe.n_ff_shared);
    if (i->n_head % tp)
        return err_param(e, ERR_INVALID, "layout",
                         "tp %d does not divide the model's %d attention heads", tp,
                         i->n_head);
    if (i->n_kv_head % tp && tp % i->n_kv_head)
        return err_param(e, ERR_INVALID, "layout",
                         "tp %d neither divides the model's %d KV heads nor is a "
                         "multiple of them",
                         tp, i->n_kv_head);
    if ((!i->moe.n_expert || i->moe.n_dense) && i->n_ff % tp)
        return err_param(e, ERR_INVALID, "layout",
                         "tp %d does not divide the FFN's width of %d", tp, i->n_ff);
    if (pp > i->n_layer)
        return err_param(e, ERR_INVALID, "layout", "pp %d is more than the %d layers", pp,
                         i->n_layer);
    return check_cp(i, p, e) < 0 ? -1 : check_as(i, p, e);
}
