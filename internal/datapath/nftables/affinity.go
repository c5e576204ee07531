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
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

// Session affinity. A Service port with affinity gets affinity IDs. Frontends of the port
// share an ID if they have the same family and the same endpoints: all of the cluster, or
// this node's only. The ID replaces the verdict ID in the packet's priority, with the
// index of the affinity's duration in eight of its bits:
//
//	lb-random-3-affinity:  priority = affinity-ids4[frontend]
//	                       dnat to affinity-clients4[ID . client], else to a random endpoint
//	after dnat:            duration vmap @affinity-updates
//	affinity-update-10800: affinity-clients4[ID . client] = endpoint
//
// So a Service with affinity costs elements of data only. Each duration in use has a
// chain, and the hooks after dnat exist only while there is such a chain.
//
// A client's entry lives as long as the affinity lasts and is renewed by every new
// connection. Only memory limits the number of clients. Entries that lead to a removed
// endpoint are deleted after the change, and once more a moment later, for packets that
// were in flight.

// An affinityID is a number in a range that no other packet priority uses: its highest
// four bits are b. The next eight bits hold the duration, which is not part of the ID.
type affinityID uint32

const (
	affinityRange  affinityID = 0xb0000000
	affinityNumber affinityID = 0x000fffff
	affinityMask              = 0xf0000000 | affinityNumber // the ID in a packet's priority
	durationMask              = ^affinityNumber             // the duration in it, with the range
	durationShift             = 20
	maxDurations              = 256
)

// A durationIndex stands for one of the durations in use.
type durationIndex uint8

// word returns the packet priority that holds the ID and the duration.
func (c durationIndex) word(i affinityID) affinityID { return i | affinityID(c)<<durationShift }

// An affinityPortKey is what an affinity ID belongs to.
type affinityPortKey struct {
	name  string
	is4   bool
	local bool // the routes have this node's endpoints only
}

// An affinityPort is an affinity ID in use.
type affinityPort struct {
	portKey   affinityPortKey
	frontends []service.Key // frontends that have it
}

// affinityIDOf returns the ID of a Service port. It assigns a new ID if there is none yet.
func (s *state) affinityIDOf(n affinityPortKey) affinityID {
	if i, ok := s.affinityIDs[n]; ok {
		return i
	}
	// There are more IDs than frontends, so an ID is always free.
	number, _ := lb.NextFree(uint32(s.lastAffinityID), uint32(affinityNumber), func(n uint32) bool { return s.affinityPorts[affinityRange|affinityID(n)] != nil })
	s.lastAffinityID = affinityID(number)
	s.registerAffinityID(n, affinityRange|s.lastAffinityID)
	return affinityRange | s.lastAffinityID
}

// registerAffinityID records which Service port an ID belongs to.
func (s *state) registerAffinityID(n affinityPortKey, i affinityID) {
	s.affinityIDs[n] = i
	s.affinityPorts[i] = &affinityPort{portKey: n}
	s.lastAffinityID = max(s.lastAffinityID, i&affinityNumber)
}

// durationIndexOf returns the index of a duration. It assigns a new index if there is none
// yet. When all maxDurations indexes are in use, a duration shares the next longer one.
func (s *state) durationIndexOf(seconds uint32) durationIndex {
	free, nearest := -1, 0
	for c, at := range s.durations {
		best := s.durations[nearest]
		switch {
		case at == seconds:
			return durationIndex(c)
		case at == 0 && free < 0:
			free = c
		case at >= seconds && (best < seconds || at < best), at < seconds && best < seconds && at > best:
			nearest = c
		}
	}
	if free < 0 {
		return durationIndex(nearest)
	}
	s.durations[free] = seconds
	return durationIndex(free)
}

// comment is the comment of a frontend's affinity ID: the Service port, and how long a
// client stays. A restart reads it back.
func (n affinityPortKey) comment(seconds uint32) string {
	if n.local {
		return fmt.Sprintf("%s %ds local", n.name, seconds)
	}
	return fmt.Sprintf("%s %ds", n.name, seconds)
}

func parseAffinityComment(text string, is4 bool) (n affinityPortKey, seconds uint32, err error) {
	words := strings.Fields(text)
	if len(words) == 3 && words[2] == "local" {
		n.local, words = true, words[:2]
	}
	if len(words) != 2 {
		return n, 0, fmt.Errorf("comment %q has no affinity", text)
	}
	seconds, err = parseSeconds(words[1])
	n.name, n.is4 = words[0], is4
	return n, seconds, err
}

func parseSeconds(text string) (uint32, error) {
	n, err := strconv.ParseUint(strings.TrimSuffix(text, "s"), 10, 32)
	return uint32(n), err
}

// Names of the chains that record the endpoint of a client.
const (
	affinityChainPrefix = "affinity-update-"
	affinityPrerouting  = affinityChainPrefix + "prerouting"
	affinityOutput      = affinityChainPrefix + "output"
)

func affinityUpdateChain(seconds uint32) string {
	return fmt.Sprintf("%s%d", affinityChainPrefix, seconds)
}

// affinityUpdateHook finds new connections whose endpoint must be recorded:
//
//	ct state new ct status dnat meta priority & 0xfff00000 vmap @affinity-updates
func affinityUpdateHook() []expr.Any {
	rule := []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg1},
		masked(expr.CtStateBitNEW, 0),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{0, 0, 0, 0}},
	}
	return append(append(rule, translated()...),
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1},
		masked(uint32(durationMask), 0),
		&expr.Lookup{SourceRegister: reg1, SetName: affinityUpdates, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT},
	)
}

// affinityPriority is the priority of the hooks that record endpoints. It is one higher than
// in releases up to 16d7bce. During an upgrade both releases' hooks exist; the old hooks run
// first and fill the old map, which migrate reads, until the rules are switched over.
const affinityPriority = numbers.HookAffinity

// addAffinityHooks queues the hooks that record endpoints.
func addAffinityHooks(t *nft.Table, c *nftables.Conn) {
	for name, hook := range map[string]*nftables.ChainHook{affinityPrerouting: nftables.ChainHookPrerouting, affinityOutput: nftables.ChainHookOutput} {
		chain := addHook(t, c, name, hook, affinityPriority)
		c.AddRule(&nftables.Rule{Table: t.Ref(), Chain: chain, Exprs: affinityUpdateHook()})
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

// delAffinityHooks queues the inverse of addAffinityHooks.
func delAffinityHooks(t *nft.Table, c *nftables.Conn) {
	for _, name := range []string{affinityPrerouting, affinityOutput} {
		c.FlushChain(t.Chain(name))
		c.DelChain(t.Chain(name))
	}
}

// affinityUpdate is the rule that records a client's endpoint:
//
//	update @affinity-clients4 { (meta priority & 0xf00fffff) . ip saddr timeout 3h : ip daddr . th dport }
func (f family) affinityUpdate(seconds uint32) []expr.Any {
	const data = firstReg + 8
	return append(append(f.family(), loadAffinityID()...),
		&expr.Payload{DestRegister: firstReg + 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.saddr, Len: f.size},
		&expr.Payload{DestRegister: data, Base: expr.PayloadBaseNetworkHeader, Offset: f.daddr, Len: f.size},
		&expr.Payload{DestRegister: data + f.size/4, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Dynset{
			SrcRegKey: firstReg, SrcRegData: data, SetName: affinityClients.Name(f.is4),
			Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: time.Duration(seconds) * time.Second,
		},
	)
}

// addUpdateChain queues the chain of a duration, and the element that leads there. The
// chain resets the packet's priority.
func addUpdateChain(t *nft.Table, c *nftables.Conn, l durationIndex, seconds uint32) error {
	name := affinityUpdateChain(seconds)
	chain := c.AddChain(t.Chain(name))
	c.FlushChain(chain)
	for _, rule := range [...][]expr.Any{families[0].affinityUpdate(seconds), families[1].affinityUpdate(seconds), clearPriority()} {
		c.AddRule(&nftables.Rule{Table: t.Ref(), Chain: chain, Exprs: rule})
	}
	return c.SetAddElements(t.Set(affinityUpdates), []nftables.SetElement{{
		Key: affinityData(l.word(affinityRange)), Comment: fmt.Sprintf("%ds", seconds),
		VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: name},
	}})
}

// delUpdateChain queues the inverse of addUpdateChain.
func delUpdateChain(t *nft.Table, c *nftables.Conn, l durationIndex, seconds uint32) error {
	if err := c.SetDeleteElements(t.Set(affinityUpdates), []nftables.SetElement{{Key: affinityData(l.word(affinityRange))}}); err != nil {
		return err
	}
	c.FlushChain(t.Chain(affinityUpdateChain(seconds)))
	c.DelChain(t.Chain(affinityUpdateChain(seconds)))
	return nil
}

// loadAffinityID puts the ID in the packet's priority into the first register.
func loadAffinityID() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1}, masked(uint32(affinityMask), 0)}
}

func affinityData(i affinityID) []byte { return nftset.Number(uint32(i)) }

// affinityLookup is the lookup of a client's endpoint, in two rules:
//
//	meta priority set ip daddr . meta l4proto . th dport map @affinity-ids4
//	dnat ip to (meta priority & 0xf00fffff) . ip saddr map @affinity-clients4
func (f family) affinityLookup(h verdictID) [][]expr.Any {
	from := affinityIDSet(h&verdictNodePort != 0, h&verdictExternal != 0)
	front, _ := f.loadFrontend(h&verdictNodePort != 0)
	first := append(f.family(), front...)
	first = append(first,
		&expr.Lookup{SourceRegister: firstReg, DestRegister: firstReg, IsDestRegSet: true, SetName: from.Name(f.is4)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: firstReg, SourceRegister: true},
	)
	second := append(f.family(), loadAffinityID()...)
	second = append(second,
		&expr.Payload{DestRegister: firstReg + 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.saddr, Len: f.size},
		&expr.Lookup{SourceRegister: firstReg, DestRegister: firstReg, IsDestRegSet: true, SetName: affinityClients.Name(f.is4)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nfproto), RegAddrMin: firstReg, RegProtoMin: f.protoInNAT},
	)
	return [][]expr.Any{first, second}
}

// affinityIDSet is the map of the affinity IDs of a kind of frontend.
func affinityIDSet(nodePort, external bool) nftset.Set {
	switch {
	case nodePort && external:
		return affinityIDsNodeportsExternal
	case nodePort:
		return affinityIDsNodeports
	case external:
		return affinityIDsExternal
	}
	return affinityIDs
}

// trackAffinityID records that the frontend k uses i, or no longer uses it.
func (s *state) trackAffinityID(i affinityID, k service.Key, has bool) {
	st := s.affinityPorts[i]
	if st == nil {
		return
	}
	at := slices.Index(st.frontends, k)
	switch {
	case has && at < 0:
		st.frontends = append(st.frontends, k)
	case !has && at >= 0:
		st.frontends = slices.Delete(st.frontends, at, at+1)
	}
}

// addUpdateChains queues the chains of the durations that are in use for the first time.
func (s *state) addUpdateChains(t *nft.Table, c *nftables.Conn) (queued bool, err error) {
	for l, seconds := range s.durations {
		if seconds == 0 || s.updateChains[durationIndex(l)] == seconds {
			continue
		}
		if len(s.updateChains) == 0 {
			addAffinityHooks(t, c)
		}
		if err := addUpdateChain(t, c, durationIndex(l), seconds); err != nil {
			return true, err
		}
		s.updateChains[durationIndex(l)], queued = seconds, true
	}
	return queued, nil
}

// delUpdateChains queues the removal of the chains that no frontend uses any more.
func (s *state) delUpdateChains(t *nft.Table, c *nftables.Conn) (queued bool, err error) {
	var used [maxDurations]bool
	for _, st := range s.affinityPorts {
		for _, k := range st.frontends {
			used[s.at(k).extraOrZero().duration] = true
		}
	}
	for l, seconds := range s.updateChains {
		if used[l] {
			continue
		}
		if err := delUpdateChain(t, c, l, seconds); err != nil {
			return true, err
		}
		delete(s.updateChains, l)
		s.durations[l], queued = 0, true
	}
	if queued && len(s.updateChains) == 0 {
		delAffinityHooks(t, c)
	}
	return queued, nil
}

// releaseAffinityIDs forgets the IDs that no frontend uses any more.
func (s *state) releaseAffinityIDs(gone map[affinityID]bool) {
	for i := range gone {
		if st := s.affinityPorts[i]; st != nil && len(st.frontends) == 0 {
			delete(s.affinityPorts, i)
			if s.affinityIDs[st.portKey] == i {
				delete(s.affinityIDs, st.portKey)
			}
		}
	}
}

// maxPrunes is how often a deletion is tried: an entry that expires meanwhile fails the
// transaction.
const maxPrunes = 5

// pruneAffinity deletes clients' entries that lead to an endpoint which their Service port
// no longer has. It deletes entries of ids only or, if all is set, of every ID, also of IDs
// that are not in use. It reads all entries, so it runs only at the start and when a port
// with affinity loses an endpoint.
func (d *Datapath) pruneAffinity(ctx context.Context, ids map[affinityID]bool, all bool) error {
	if len(ids) == 0 && !all {
		return nil
	}
	valid := map[affinityID]map[netip.AddrPort]bool{}
	for i, st := range d.state.affinityPorts {
		if !all && !ids[i] {
			continue
		}
		valid[i] = map[netip.AddrPort]bool{}
		for _, k := range st.frontends {
			h := d.state.at(k)
			more := h.extraOrZero()
			if more.affinityID == i {
				addEndpoints(valid[i], h.slots)
			}
			if more.affinityIDExternal == i {
				addEndpoints(valid[i], more.externalSlots)
			}
		}
	}
	var err error
	for range maxPrunes {
		var ws []nft.Write
		for _, f := range families {
			name := affinityClients.Name(f.is4)
			err := d.rules.Table.Elements(ctx, name, func(e nft.Element) error {
				if len(e.Key) < 4 {
					return fmt.Errorf("affinity key has %d bytes", len(e.Key))
				}
				i := affinityID(binary.NativeEndian.Uint32(e.Key))
				to, _, err := nftset.ParseAddrPort(e.Data, f.is4)
				if (all || ids[i]) && !valid[i][to] {
					ws = append(ws, nft.Write{Set: name, Key: e.Key, Del: true})
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		if err = d.rules.Commit(ctx, nil, ws); err == nil {
			return nil
		}
	}
	return fmt.Errorf("delete clients' entries: %w", err)
}

// addEndpoints adds the endpoints in slots to a set.
func addEndpoints(set map[netip.AddrPort]bool, slots []slot) {
	for _, s := range slots {
		set[s.addr()] = true
	}
}
