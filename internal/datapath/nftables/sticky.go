package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/service"
)

// Session affinity. A Service's port that has it gets a number, an id, which all its
// frontends of a family share whose routes have the same endpoints: all of the cluster,
// or this node's only. The id takes the place of "how" in the packet's priority:
//
//	pick-3-sticky:  priority = sticky4[frontend]; dnat to affinity4[id . client], else pick
//	   after dnat:  priority vmap @learn → learn-10800: affinity4[id . client] = endpoint
//
// A client's entry lives as long as the affinity lasts and is renewed by every new
// connection. There is no limit of clients but memory. Entries that lead to an endpoint
// which left are swept out after the change, and once more a moment later, for packets
// that were under way.

// An id is a number in a range that no one else's priorities come from.
type id uint32

const firstID id = 0xfa110000

// stickyName is what an id belongs to.
type stickyName struct {
	name  string
	is4   bool
	local bool // of routes with this node's endpoints only
}

// sticky is what an id needs in the kernel.
type sticky struct {
	name    stickyName
	seconds uint32
	uses    int // frontends that have it
}

// idOf returns the id of a Service's port, a new one if it has none yet.
func (s *state) idOf(n stickyName) id {
	if i, ok := s.ids[n]; ok {
		return i
	}
	i := s.nextID
	s.takeID(n, i)
	return i
}

// takeID notes whose an id is; the next new one is behind all that were ever taken.
func (s *state) takeID(n stickyName, i id) {
	s.ids[n] = i
	s.nextID = max(s.nextID, i+1)
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
	long, err := strconv.ParseUint(strings.TrimSuffix(words[1], "s"), 10, 32)
	n.name, n.is4 = words[0], is4
	return n, uint32(long), err
}

// learnChain is the chain that remembers clients for so many seconds.
func learnChain(seconds uint32) string { return fmt.Sprintf("learn-%d", seconds) }

// addLearner queues the chain of a duration: for each family
//
//	update @affinity4 { meta priority . ip saddr timeout 3h : ip daddr . th dport }
//
// and then the priority is cleared.
func (k *kernel) addLearner(c *nftables.Conn, seconds uint32) {
	chain := c.AddChain(&nftables.Chain{Table: k.table, Name: learnChain(seconds)})
	c.FlushChain(chain)
	for _, f := range families {
		const key, data = firstReg, firstReg + 8
		rule := append(f.match(),
			&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: key},
			&expr.Payload{DestRegister: key + 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.saddr, Len: f.size},
			&expr.Payload{DestRegister: data, Base: expr.PayloadBaseNetworkHeader, Offset: f.daddr, Len: f.size},
			&expr.Payload{DestRegister: data + f.size/4, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Dynset{
				SrcRegKey: key, SrcRegData: data, SetName: affinity.name(f.is4),
				Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: time.Duration(seconds) * time.Second,
			},
		)
		c.AddRule(&nftables.Rule{Table: k.table, Chain: chain, Exprs: rule})
	}
	c.AddRule(&nftables.Rule{Table: k.table, Chain: chain, Exprs: clearPriority()})
}

// learn queues the element that leads from an id to its learner.
func (k *kernel) learn(c *nftables.Conn, i id, seconds uint32) error {
	return c.SetAddElements(&nftables.Set{Table: k.table, Name: learnMap}, []nftables.SetElement{{
		Key: idData(i), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: learnChain(seconds)},
	}})
}

func (k *kernel) unlearn(c *nftables.Conn, i id) error {
	return c.SetDeleteElements(&nftables.Set{Table: k.table, Name: learnMap}, []nftables.SetElement{{Key: idData(i)}})
}

func idData(i id) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(i)) }

// remembered is the lookup of a client's endpoint, in two rules:
//
//	meta priority set ip daddr . meta l4proto . th dport map @sticky4
//	dnat ip to meta priority . ip saddr map @affinity4
func (f family) remembered(h how) [][]expr.Any {
	reg, from := uint32(firstReg), stickySet(h&howNodePort != 0, h&howOutside != 0)
	first := f.match()
	if h&howNodePort == 0 {
		first = append(first, &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: f.daddr, Len: f.size})
		reg += f.size / 4
	}
	first = append(first,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Payload{DestRegister: reg + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: firstReg, DestRegister: firstReg, IsDestRegSet: true, SetName: from.name(f.is4)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: firstReg, SourceRegister: true},
	)
	second := append(f.match(),
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: firstReg},
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

// learners is what one Sync changes of ids.
type learners struct {
	now  map[id]sticky // ids that change, as they shall be; uses 0: gone
	gone map[id]bool   // ids of which an endpoint may have left
}

// learners finds the ids that change with the frontends in next.
func (s *state) learners(next map[service.Key]*held, full bool) learners {
	l := learners{now: map[id]sticky{}, gone: map[id]bool{}}
	touch := func(i id) sticky {
		if _, ok := l.now[i]; !ok {
			l.now[i] = s.stickies[i]
		}
		return l.now[i]
	}
	for k, is := range next {
		was := s.at(k)
		for _, i := range [...]id{was.id, was.outsideID} {
			if i != 0 {
				st := touch(i)
				st.uses--
				l.now[i], l.gone[i] = st, true
			}
		}
		for _, list := range [...]struct {
			id    id
			local bool
		}{{is.id, is.local}, {is.outsideID, is.outsideLocal}} {
			if list.id != 0 {
				st := touch(list.id)
				st.uses++
				st.name, st.seconds = stickyName{is.name, k.Addr.Addr().Is4(), list.local}, is.seconds
				l.now[list.id] = st
			}
		}
	}
	if full {
		for i := range s.stickies {
			touch(i)
			l.gone[i] = true
		}
	}
	return l
}

// prepare queues what must be there before the first packet of an id.
func (l learners) prepare(k *kernel, c *nftables.Conn, s *state) (queued bool, err error) {
	chains := map[uint32]bool{}
	for i, st := range l.now {
		if st.uses > 0 && (!s.learned[i] || s.stickies[i].seconds != st.seconds) && !chains[st.seconds] {
			chains[st.seconds], queued = true, true
			k.addLearner(c, st.seconds)
		}
	}
	for i, st := range l.now {
		if st.uses <= 0 || s.learned[i] && s.stickies[i].seconds == st.seconds {
			continue
		}
		if s.learned[i] {
			if err := k.unlearn(c, i); err != nil {
				return queued, err
			}
		}
		if err := k.learn(c, i, st.seconds); err != nil {
			return queued, err
		}
	}
	return queued, nil
}

// finish queues the end of ids that nobody uses any more.
func (l learners) finish(k *kernel, c *nftables.Conn, s *state) (queued bool, err error) {
	for i, st := range l.now {
		if st.uses <= 0 && s.learned[i] {
			queued = true
			if err := k.unlearn(c, i); err != nil {
				return queued, err
			}
		}
	}
	return queued, nil
}

// note takes over what was written.
func (l learners) note(s *state) {
	for i, st := range l.now {
		if st.uses > 0 {
			s.stickies[i], s.learned[i] = st, true
			continue
		}
		if name := s.stickies[i].name; s.ids[name] == i {
			delete(s.ids, name)
		}
		delete(s.stickies, i)
		delete(s.learned, i)
	}
}

// maxSweeps is how often a sweep is tried that meets entries which end by themselves
// while it runs: to delete one that is gone fails the transaction.
const maxSweeps = 5

// sweep deletes clients' entries that lead to an endpoint which their Service's port does
// not have any more. It reads all entries, so it is done only when a port that has
// affinity loses an endpoint.
func (d *Datapath) sweep(ids map[id]bool) error {
	if len(ids) == 0 {
		return nil
	}
	valid := map[id]map[netip.AddrPort]bool{}
	for i := range ids {
		valid[i] = map[netip.AddrPort]bool{}
	}
	for _, h := range d.state.frontends {
		add := func(i id, slots []netip.AddrPort) {
			if of := valid[i]; of != nil {
				for _, a := range slots {
					of[a] = true
				}
			}
		}
		add(h.id, h.slots)
		add(h.outsideID, h.outsideSlots)
	}
	var err error
	for range maxSweeps {
		var ws []write
		for _, f := range families {
			name := affinity.name(f.is4)
			err := d.kernel.elements(name, func(e element) error {
				if len(e.key) < 4 {
					return fmt.Errorf("affinity key has %d bytes", len(e.key))
				}
				of, asked := valid[id(binary.NativeEndian.Uint32(e.key))]
				to, err := parseEndpoint(e.data, f.is4)
				if asked && !of[to] {
					ws = append(ws, write{set: name, key: e.key, del: true})
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
		}
		if err = d.kernel.commit(nothing, ws); err == nil {
			return nil
		}
		d.kernel.close()
	}
	return fmt.Errorf("delete clients' entries: %w", err)
}

// nothing is a commit's preparation that queues nothing.
func nothing(*nftables.Conn) (bool, error) { return false, nil }
