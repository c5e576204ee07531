package observe

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// Stop ends the watch and returns the node's observations in the order of their time.
func (w *Watch) Stop(ctx context.Context) ([]trace.Observation, trace.Done) {
	w.finish()
	defer w.Close()
	done := trace.Done{Node: w.order.Node, Lost: w.traced.lost || w.changes.lost || w.dropped.lost}
	if now, err := w.reader.Generation(ctx); err == nil {
		done.Changed = now != w.from
	}
	j := joiner{Watch: w, ctx: ctx, bases: map[chainKey]nft.Chain{}, passes: map[uint32]*pass{}, links: map[uint32]string{}}
	j.joinTraces()
	j.joinFlows()
	j.readFlows()
	j.joinDrops()
	j.readState()
	if err := j.readRules(); err != nil {
		j.note("the rules' text was not read: " + err.Error())
	}
	slices.SortStableFunc(j.all, func(a, b trace.Observation) int { return a.Time.Compare(b.Time) })
	return j.all, done
}

type chainKey struct {
	family       nft.Family
	table, chain string
}

// A pass is the way of one packet through this node: from our rule to the next packet with the same trace id.
type pass struct {
	number int
	reply  bool
	packet trace.Packet // as the last message with headers showed it
	base   nft.Chain
}

// A joiner makes observations of records.
type joiner struct {
	*Watch
	ctx    context.Context
	all    []trace.Observation
	bases  map[chainKey]nft.Chain
	passes map[uint32]*pass // by trace id
	count  int
	links  map[uint32]string
	seen   []trace.Packet  // the packets of the probe as they came to this node
	ids    map[uint32]bool // conntrack's ids in the traces
}

// joinTraces assigns each trace message to the pass of its packet. The kernel's id is not unique: a packet can have the id
// of an earlier one. A message of our own table is the first message of a packet, so it begins a pass.
func (j *joiner) joinTraces() {
	j.ids = map[uint32]bool{}
	own := tableName(j.order.Run)
	for i, m := range j.traced.all {
		p := j.passes[m.id]
		if packet, ok := m.packet(); ok && m.table == own {
			same := p != nil && samePacket(p.packet, packet) // a packet on lo meets the table twice
			switch {
			case m.handle == 0 && !same: // another program's trace, with the id of an earlier packet
				delete(j.passes, m.id)
				continue
			case m.handle != 0:
				p = j.begin(p, m, packet, same)
			}
		}
		if p == nil || m.table == own && m.handle == 0 {
			continue // another program's trace, or the end of our own chains
		}
		j.traceStep(p, m, j.traced.at[i])
	}
}

// begin returns the pass of a packet that met our rule.
func (j *joiner) begin(p *pass, m traced, packet trace.Packet, same bool) *pass {
	if !same {
		j.count++
		p = &pass{number: j.count, reply: strings.HasPrefix(m.chain, "reply-")}
		j.passes[m.id] = p
	}
	if !p.reply {
		j.seen = append(j.seen, packet)
	}
	return p
}

func samePacket(a, b trace.Packet) bool {
	return a.Seq == b.Seq && a.ID == b.ID && a.Flags == b.Flags && a.TTL == b.TTL && a.Src == b.Src && a.Dst == b.Dst
}

// traceStep adds the observation of one message.
func (j *joiner) traceStep(p *pass, m traced, at time.Time) {
	if chain, ok := j.chain(chainKey{m.family, m.table, m.chain}); ok && chain.Base {
		p.base = chain
	}
	if packet, ok := m.packet(); ok {
		p.packet = packet
		p.packet.In, p.packet.Out = j.link(m.in), j.link(m.out)
	}
	if m.flow != 0 {
		j.ids[m.flow] = true
	}
	packet := p.packet
	packet.Mark = m.mark
	j.all = append(j.all, trace.Observation{
		Node: j.order.Node, Time: at, Source: trace.FromNFTrace, Reply: p.reply, Pass: p.number, Packet: &packet,
		Rule: &trace.Rule{
			Family: m.family.String(), Table: m.table, Chain: m.chain, Kind: m.kind, Handle: m.handle, Verdict: m.verdict, Target: m.to,
			Base: p.base.Name, Hook: hookName(m.family, p.base.Hook), Priority: int(p.base.Priority), Type: p.base.Type,
		},
	})
}

// chain returns a chain, which it reads once. ok is false if the chain has gone.
func (j *joiner) chain(k chainKey) (c nft.Chain, ok bool) {
	if c, known := j.bases[k]; known {
		return c, c.Name != ""
	}
	if k.table == tableName(j.order.Run) {
		c = ownChain(k.chain)
	} else if read, there, err := j.reader.Chain(j.ctx, k.family, k.table, k.chain); err == nil && there {
		c = read
	}
	j.bases[k] = c
	return c, c.Name != ""
}

func (j *joiner) link(index uint32) string {
	if index == 0 {
		return ""
	}
	if name, ok := j.links[index]; ok {
		return name
	}
	name := ""
	if l, err := net.InterfaceByIndex(int(index)); err == nil {
		name = l.Name
	}
	j.links[index] = name
	return name
}

// hookName returns nft's name of a hook.
func hookName(f nft.Family, hook uint32) string {
	names := []string{"prerouting", "input", "forward", "output", "postrouting", "ingress"}
	if f == nft.Netdev {
		names = []string{"ingress", "egress"}
	}
	if int(hook) < len(names) {
		return names[hook]
	}
	return ""
}

// joinFlows keeps the events of the entries that the probe's packets made.
func (j *joiner) joinFlows() {
	ours := map[uint32]bool{}
	for i, c := range j.changes.all {
		e := c.entry
		if !ours[e.ID()] && !j.ids[e.ID()] && !j.saw(e.Client().String(), e.Frontend().String()) {
			continue
		}
		ours[e.ID()] = true
		j.addFlow(c.kind.String(), e, j.changes.at[i])
	}
}

func (j *joiner) addFlow(event string, e conntrack.Entry, at time.Time) {
	j.all = append(j.all, trace.Observation{
		Node: j.order.Node, Time: at, Source: trace.FromConntrack, Flow: &trace.Flow{
			Event: event, ID: e.ID(), Proto: uint8(e.Proto()), State: e.State(), Answered: e.Answered(), Mark: e.Mark(),
			Orig: trace.Tuple{Src: e.Client(), Dst: e.Frontend()}, Reply: trace.Tuple{Src: e.Endpoint(), Dst: e.ReplyTo()},
		},
	})
}

// maxLookups bounds the entries that are read.
const maxLookups = 16

// readFlows reads the entries of packets that no event was about: conntrack had them before.
func (j *joiner) readFlows() {
	table := conntrack.New(conntrack.Config{Log: slog.New(slog.DiscardHandler)})
	defer table.Close()
	done := map[trace.Tuple]bool{}
	for _, t := range j.tuples() {
		if done[t] {
			continue
		}
		done[t] = true
		if len(done) > maxLookups || j.hasFlow(t) {
			continue
		}
		e, there, err := table.Get(j.ctx, api.Proto(j.order.Proto), t.Src, t.Dst)
		if err != nil {
			j.note(err.Error())
			return
		}
		if there {
			j.addFlow("entry", e, now())
		}
	}
}

// hasFlow reports whether an event was about the connection with these addresses.
func (j *joiner) hasFlow(t trace.Tuple) bool {
	return slices.ContainsFunc(j.all, func(o trace.Observation) bool { return o.Flow != nil && (o.Flow.Orig == t || o.Flow.Reply == t) })
}

// saw reports whether a packet of the probe came with these addresses.
func (j *joiner) saw(src, dst string) bool {
	return slices.ContainsFunc(j.seen, func(p trace.Packet) bool { return p.Src.String() == src && p.Dst.String() == dst })
}

// note adds a line for people.
func (j *joiner) note(text string) {
	j.all = append(j.all, trace.Observation{Node: j.order.Node, Source: trace.FromNode, Note: text, Time: time.Now()})
}

// maxChains bounds the chains whose rules are read as text: nft takes 5 ms for one.
const maxChains = 32

// readRules sets the text of the rules that judged a packet.
func (j *joiner) readRules() error {
	var chains []chainKey
	for _, o := range j.all {
		if o.Rule == nil || o.Rule.Handle == 0 || o.Rule.Table == tableName(j.order.Run) {
			continue
		}
		k := chainKey{familyOf(o.Rule.Family), o.Rule.Table, o.Rule.Chain}
		if !slices.Contains(chains, k) && len(chains) < maxChains {
			chains = append(chains, k)
		}
	}
	slices.SortFunc(chains, func(a, b chainKey) int {
		return cmp.Or(cmp.Compare(a.family, b.family), strings.Compare(a.table, b.table), strings.Compare(a.chain, b.chain))
	})
	texts, err := ruleTexts(j.ctx, chains)
	for i := range j.all {
		if r := j.all[i].Rule; r != nil {
			r.Text = texts[ruleKey{chainKey{familyOf(r.Family), r.Table, r.Chain}, r.Handle}]
		}
	}
	return err
}
