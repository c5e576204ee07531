package nftables

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/datapath/lb"
	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// Session affinity. A Service's port that has it gets a number, an id, which all its
// frontends of a family share whose routes have the same endpoints: all of the cluster,
// or this node's only. The id takes the place of "how" in the packet's priority, with
// the class of how long clients stay in eight of its bits:
//
//	pick-3-sticky:  priority = sticky4[frontend]; dnat to affinity4[id . client], else pick
//	   after dnat:  class vmap @learners → remember-10800: affinity4[id . client] = endpoint
//
// So a Service with affinity costs elements of data only; there is a chain for each
// duration in use, and the hooks after dnat are there only while there is one.
//
// A client's entry lives as long as the affinity lasts and is renewed by every new
// connection. There is no limit of clients but memory. Entries that lead to an endpoint
// which left are swept out after the change, and once more a moment later, for packets
// that were under way.

// An id is a number in a range that no one else's priorities come from: its highest four
// bits are b, the next eight are for the class, which is no part of it.
type id uint32

const (
	idRange    id = 0xb0000000
	idNumber   id = 0x000fffff
	idMask        = 0xf0000000 | idNumber // the id in a packet's priority
	classMask     = ^idNumber             // the class in it, with the range
	classShift    = 20
	maxClasses    = 256
)

// A class is one of the durations in use.
type class uint8

// in returns what stands in a packet's priority.
func (c class) in(i id) id { return i | id(c)<<classShift }

// stickyName is what an id belongs to.
type stickyName struct {
	name  string
	is4   bool
	local bool // of routes with this node's endpoints only
}

// sticky is an id in use.
type sticky struct {
	name stickyName
	keys []service.Key // frontends that have it
}

// idOf returns the id of a Service's port, a new one if it has none yet.
func (s *state) idOf(n stickyName) id {
	if i, ok := s.ids[n]; ok {
		return i
	}
	// There are more ids than frontends: one is always free.
	number, _ := lb.NextFree(uint32(s.lastID), uint32(idNumber), func(n uint32) bool { return s.stickies[idRange|id(n)] != nil })
	s.lastID = id(number)
	s.takeID(n, idRange|s.lastID)
	return idRange | s.lastID
}

// takeID notes whose an id is.
func (s *state) takeID(n stickyName, i id) {
	s.ids[n] = i
	s.stickies[i] = &sticky{name: n}
	s.lastID = max(s.lastID, i&idNumber)
}

// classOf returns the class of a duration, a new one if it has none yet. Of more than
// maxClasses durations at once, some share the next longer one.
func (s *state) classOf(seconds uint32) class {
	free, nearest := -1, 0
	for c, at := range s.classes {
		best := s.classes[nearest]
		switch {
		case at == seconds:
			return class(c)
		case at == 0 && free < 0:
			free = c
		case at >= seconds && (best < seconds || at < best), at < seconds && best < seconds && at > best:
			nearest = c
		}
	}
	if free < 0 {
		return class(nearest)
	}
	s.classes[free] = seconds
	return class(free)
}

// comment is the comment of a frontend's id: who it is, and for how long a client stays.
// It is read back at a restart.
func (n stickyName) comment(seconds uint32) string {
	if n.local {
		return fmt.Sprintf("%s %ds local", n.name, seconds)
	}
	return fmt.Sprintf("%s %ds", n.name, seconds)
}

func parseStickyComment(text string, is4 bool) (n stickyName, seconds uint32, err error) {
	words := strings.Fields(text)
	if len(words) == 3 && words[2] == "local" {
		n.local, words = true, words[:2]
	}
	if len(words) != 2 {
		return n, 0, fmt.Errorf("comment %q names no affinity", text)
	}
	seconds, err = parseSeconds(words[1])
	n.name, n.is4 = words[0], is4
	return n, seconds, err
}

func parseSeconds(text string) (uint32, error) {
	n, err := strconv.ParseUint(strings.TrimSuffix(text, "s"), 10, 32)
	return uint32(n), err
}

// Names of the chains that remember.
const (
	rememberPrefix     = "remember-"
	rememberPrerouting = rememberPrefix + "prerouting"
	rememberOutput     = rememberPrefix + "output"
)

func rememberChain(seconds uint32) string { return fmt.Sprintf("%s%d", rememberPrefix, seconds) }

// learns looks whether a packet's endpoint shall be remembered:
//
//	ct state new ct status dnat meta priority & 0xfff00000 vmap @learners
func learns() []expr.Any {
	rule := []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg1},
		masked(expr.CtStateBitNEW, 0),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{0, 0, 0, 0}},
	}
	return append(append(rule, translated()...),
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1},
		masked(uint32(classMask), 0),
		&expr.Lookup{SourceRegister: reg1, SetName: learnerMap, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT},
	)
}

// addHooks queues the hooks that learn.
func addHooks(t *nft.Table, c *nftables.Conn) {
	for name, hook := range map[string]*nftables.ChainHook{rememberPrerouting: nftables.ChainHookPrerouting, rememberOutput: nftables.ChainHookOutput} {
		chain := addHook(t, c, name, hook, -99)
		c.AddRule(&nftables.Rule{Table: t.Ref(), Chain: chain, Exprs: learns()})
	}
}

// addHook queues a chain, without rules, that sees packets at a hook.
func addHook(t *nft.Table, c *nftables.Conn, name string, hook *nftables.ChainHook, priority nftables.ChainPriority) *nftables.Chain {
	chain := t.Chain(name)
	chain.Type, chain.Hooknum, chain.Priority = nftables.ChainTypeFilter, hook, &priority
	c.AddChain(chain)
	c.FlushChain(chain)
	return chain
}

// translated is "ct status dnat".
func translated() []expr.Any {
	const ipsDstNAT = 1 << 5
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg1},
		masked(ipsDstNAT, 0),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{0, 0, 0, 0}},
	}
}

// delHooks queues the inverse of addHooks.
func delHooks(t *nft.Table, c *nftables.Conn) {
	for _, name := range []string{rememberPrerouting, rememberOutput} {
		c.FlushChain(t.Chain(name))
		c.DelChain(t.Chain(name))
	}
}

// remember is the rule that remembers a client for so long:
//
//	update @affinity4 { (meta priority & 0xf00fffff) . ip saddr timeout 3h : ip daddr . th dport }
func (f family) remember(seconds uint32) []expr.Any {
	const data = firstReg + 8
	return append(append(f.match(), loadID()...),
		&expr.Payload{DestRegister: firstReg + 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.saddr, Len: f.size},
		&expr.Payload{DestRegister: data, Base: expr.PayloadBaseNetworkHeader, Offset: f.daddr, Len: f.size},
		&expr.Payload{DestRegister: data + f.size/4, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Dynset{
			SrcRegKey: firstReg, SrcRegData: data, SetName: affinity.name(f.is4),
			Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: time.Duration(seconds) * time.Second,
		},
	)
}

// addLearner queues the chain of a duration, and the element that leads there. After it
// the priority is as if we had never used it.
func addLearner(t *nft.Table, c *nftables.Conn, l class, seconds uint32) error {
	name := rememberChain(seconds)
	chain := c.AddChain(t.Chain(name))
	c.FlushChain(chain)
	for _, rule := range [...][]expr.Any{families[0].remember(seconds), families[1].remember(seconds), clearPriority()} {
		c.AddRule(&nftables.Rule{Table: t.Ref(), Chain: chain, Exprs: rule})
	}
	return c.SetAddElements(t.Set(learnerMap), []nftables.SetElement{{
		Key: idData(l.in(idRange)), Comment: fmt.Sprintf("%ds", seconds),
		VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: name},
	}})
}

// delLearner queues the inverse of addLearner.
func delLearner(t *nft.Table, c *nftables.Conn, l class, seconds uint32) error {
	if err := c.SetDeleteElements(t.Set(learnerMap), []nftables.SetElement{{Key: idData(l.in(idRange))}}); err != nil {
		return err
	}
	c.FlushChain(t.Chain(rememberChain(seconds)))
	c.DelChain(t.Chain(rememberChain(seconds)))
	return nil
}

// loadID puts the id in the packet's priority into the first register.
func loadID() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1}, masked(uint32(idMask), 0)}
}

func idData(i id) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(i)) }

// remembered is the lookup of a client's endpoint, in two rules:
//
//	meta priority set ip daddr . meta l4proto . th dport map @sticky4
//	dnat ip to (meta priority & 0xf00fffff) . ip saddr map @affinity4
func (f family) remembered(h how) [][]expr.Any {
	from := stickySet(h&howNodePort != 0, h&howOutside != 0)
	front, _ := f.front(h&howNodePort != 0)
	first := append(f.match(), front...)
	first = append(first,
		&expr.Lookup{SourceRegister: firstReg, DestRegister: firstReg, IsDestRegSet: true, SetName: from.name(f.is4)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: firstReg, SourceRegister: true},
	)
	second := append(f.match(), loadID()...)
	second = append(second,
		&expr.Payload{DestRegister: firstReg + 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.saddr, Len: f.size},
		&expr.Lookup{SourceRegister: firstReg, DestRegister: firstReg, IsDestRegSet: true, SetName: affinity.name(f.is4)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nfproto), RegAddrMin: firstReg, RegProtoMin: f.protoInNAT},
	)
	return [][]expr.Any{first, second}
}

// stickySet is the map that has the ids of a kind of frontend.
func stickySet(nodePort, outside bool) set {
	switch {
	case nodePort && outside:
		return nodeportStickyOut
	case nodePort:
		return nodeportSticky
	case outside:
		return stickyOutside
	}
	return stickies
}

// list notes that the frontend k has i, or has it no more.
func (s *state) list(i id, k service.Key, has bool) {
	st := s.stickies[i]
	if st == nil {
		return
	}
	at := slices.Index(st.keys, k)
	switch {
	case has && at < 0:
		st.keys = append(st.keys, k)
	case !has && at >= 0:
		st.keys = slices.Delete(st.keys, at, at+1)
	}
}

// addLearners queues what remembers clients for the durations that came into use.
func (s *state) addLearners(t *nft.Table, c *nftables.Conn) (queued bool, err error) {
	for l, seconds := range s.classes {
		if seconds == 0 || s.learners[class(l)] == seconds {
			continue
		}
		if len(s.learners) == 0 {
			addHooks(t, c)
		}
		if err := addLearner(t, c, class(l), seconds); err != nil {
			return true, err
		}
		s.learners[class(l)], queued = seconds, true
	}
	return queued, nil
}

// delLearners queues the end of those that no frontend uses any more.
func (s *state) delLearners(t *nft.Table, c *nftables.Conn) (queued bool, err error) {
	var used [maxClasses]bool
	for _, st := range s.stickies {
		for _, k := range st.keys {
			used[s.at(k).rare().class] = true
		}
	}
	for l, seconds := range s.learners {
		if used[l] {
			continue
		}
		if err := delLearner(t, c, l, seconds); err != nil {
			return true, err
		}
		delete(s.learners, l)
		s.classes[l], queued = 0, true
	}
	if queued && len(s.learners) == 0 {
		delHooks(t, c)
	}
	return queued, nil
}

// release forgets ids that no frontend has any more.
func (s *state) release(gone map[id]bool) {
	for i := range gone {
		if st := s.stickies[i]; st != nil && len(st.keys) == 0 {
			delete(s.stickies, i)
			if s.ids[st.name] == i {
				delete(s.ids, st.name)
			}
		}
	}
}

// maxSweeps is how often a sweep is tried that meets entries which end by themselves
// while it runs: to delete one that is gone fails the transaction.
const maxSweeps = 5

// sweep deletes clients' entries that lead to an endpoint which their Service's port does
// not have any more: those of ids or, if all is set, all, also those whose id nobody
// has. It reads all entries, so it is done only when a port that has affinity loses an
// endpoint, and at the start.
func (d *Datapath) sweep(ctx context.Context, ids map[id]bool, all bool) error {
	if len(ids) == 0 && !all {
		return nil
	}
	valid := map[id]map[netip.AddrPort]bool{}
	for i, st := range d.state.stickies {
		if !all && !ids[i] {
			continue
		}
		valid[i] = map[netip.AddrPort]bool{}
		for _, k := range st.keys {
			h := d.state.at(k)
			more := h.rare()
			if more.id == i {
				note(valid[i], h.slots)
			}
			if more.outsideID == i {
				note(valid[i], more.outsideSlots)
			}
		}
	}
	var err error
	for range maxSweeps {
		var ws []nft.Write
		for _, f := range families {
			name := affinity.name(f.is4)
			err := d.kernel.Elements(ctx, name, func(e nft.Element) error {
				if len(e.Key) < 4 {
					return fmt.Errorf("affinity key has %d bytes", len(e.Key))
				}
				i := id(binary.NativeEndian.Uint32(e.Key))
				to, err := parseEndpoint(e.Data, f.is4)
				if (all || ids[i]) && !valid[i][to] {
					ws = append(ws, nft.Write{Set: name, Key: e.Key, Del: true})
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		if err = d.kernel.Commit(ctx, nil, ws); err == nil {
			return nil
		}
	}
	return fmt.Errorf("delete clients' entries: %w", err)
}

// note adds the endpoints in slots to a set.
func note(set map[netip.AddrPort]bool, slots []slot) {
	for _, s := range slots {
		set[s.addr()] = true
	}
}
