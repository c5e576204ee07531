package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// Flags of a front, as in connect.c.
const (
	flagRoundRobin = 1 << iota
	flagPods
	flagLeastConn
	flagShortestDelay
	flagNeverQueue
)

// algorithms has the flag of each algorithm at connect time.
var algorithms = map[service.Algorithm]uint32{
	service.Random: 0, service.DestHash: 0, service.RoundRobin: flagRoundRobin,
	service.LeastConn: flagLeastConn, service.ShortestDelay: flagShortestDelay, service.NeverQueue: flagNeverQueue,
}

// counting are the algorithms that need connection counts. nf_tables has no counts, and chooses at random.
var counting = service.AlgorithmsOf(service.LeastConn, service.ShortestDelay, service.NeverQueue)

// batch is how many elements one system call reads.
const batch = 4096

// A list is the content of the maps for one frontend. An empty list leaves the frontend to nf_tables.
type list struct {
	flags, pause, spare uint32
	slots               []connectSlot
}

func addrOf(a netip.AddrPort) (c connectAddr) {
	ip := a.Addr().As16()
	for i := range c.Ip {
		c.Ip[i] = binary.NativeEndian.Uint32(ip[4*i:])
	}
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], a.Port())
	c.Port = binary.NativeEndian.Uint16(port[:])
	return c
}

// translatable reports whether the programs may translate sockets to a frontend with the same result as nf_tables.
func translatable(f *service.Frontend) bool {
	if f == nil || f.Proto != api.TCP || f.NodePort() || f.Internal.Action != service.Forward || len(f.Sources) > 0 || f.Affinity > 0 {
		return false
	}
	_, ok := algorithms[f.Balance]
	return ok
}

// podsToo reports whether this also holds for pods. A masqueraded client needs nf_tables. If the node cannot tell pods
// from strangers, pods are external clients.
func podsToo(f *service.Frontend, s *service.Settings) bool {
	is4, is6 := s.Detect()
	if f.Addr.Addr().Is4() && is4 || f.Addr.Addr().Is6() && is6 {
		return f.Internal.Masquerade != service.MasqueradeAll
	}
	return f.External.Equal(f.Internal) && f.Internal.Masquerade == service.MasqueradeHairpin
}

// listOf returns the list of a frontend: the slots of nf_tables, or one slot for each endpoint if the algorithm counts.
func (d *Datapath) listOf(f *service.Frontend, s *service.Settings) (l list) {
	if !translatable(f) {
		return l
	}
	defer func() { l.eject(f) }()
	l.flags = algorithms[f.Balance]
	if podsToo(f, s) {
		l.flags |= flagPods
	}
	if counting.Has(f.Balance) {
		for _, e := range f.Internal.Endpoints[:min(len(f.Internal.Endpoints), lb.MaxSlots)] {
			l.slots = append(l.slots, connectSlot{To: addrOf(e.Addr), Weight: uint16(lb.Weight(e))})
		}
		return l
	}
	slots := d.Slots(f.Key())
	if f.Balance == service.DestHash && len(slots) > 0 { // the hash of the frontend's address is constant
		at := lb.Pick(lb.Hash(f.Addr.Addr()), len(slots))
		slots = slots[at : at+1]
	}
	for _, a := range slots {
		if !a.IsValid() {
			return list{}
		}
		l.slots = append(l.slots, connectSlot{To: addrOf(a), Weight: 1})
	}
	return l
}

// eject sets the list's part in ejections. The slots of endpoints with weights are spared in proportion.
func (l *list) eject(f *service.Frontend) {
	if n := len(f.Internal.Endpoints); f.Ejection > 0 && n > 0 {
		l.pause = uint32(f.Ejection / time.Second)
		l.spare = uint32(len(l.slots) * f.Internal.Spare / n)
	}
}

func (l list) equal(o list) bool {
	return l.flags == o.flags && l.pause == o.pause && l.spare == o.spare && slices.Equal(l.slots, o.slots)
}

// changes yields the frontends that differ between two tables, also in fields that nf_tables does not read.
func changes(was, is *service.Table) iter.Seq[service.Change] {
	return func(yield func(service.Change) bool) {
		for c := range service.Touched(was, is) {
			same := c.Old != nil && c.New != nil && c.Old.Equal(c.New) && c.Old.Ejection == c.New.Ejection && c.Old.Internal.Spare == c.New.Internal.Spare
			if !same && !yield(c) {
				return
			}
		}
	}
}

// withdrawChanged removes the frontends that differ from the last table.
func (d *Datapath) withdrawChanged(want *service.Table) (deleted int, err error) {
	for c := range changes(d.table, want) {
		if !translatable(c.Old) {
			continue
		}
		n, err := d.withdraw(addrOf(c.Old.Addr))
		if deleted += n; err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

// withdraw removes one frontend. The slots go after the front that leads to them.
func (d *Datapath) withdraw(key connectAddr) (deleted int, err error) {
	var f connectFront
	err = d.prog.Fronts.LookupAndDelete(key, &f)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, nil
	}
	for i := range f.Slots {
		if err != nil {
			return deleted, err
		}
		err = d.prog.Slots.Delete(connectSlotKey{Front: key, Slot: i})
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil
		}
		deleted++
	}
	d.unused.withdrawn()
	return deleted + 1, err
}

// publishChanged writes the frontends that differ from the last table.
func (d *Datapath) publishChanged(want *service.Table) (added int, err error) {
	for c := range changes(d.table, want) {
		if !translatable(c.New) {
			continue
		}
		n, err := d.publish(addrOf(c.New.Addr), d.listOf(c.New, &want.Settings), endpointsOf(c.Old))
		if added += n; err != nil {
			return added, err
		}
	}
	return added, nil
}

// publish writes one frontend. A full map leaves the frontend to nf_tables.
func (d *Datapath) publish(key connectAddr, l list, known map[connectAddr]bool) (added int, err error) {
	added, err = d.write(key, l, known)
	if !errors.Is(err, unix.E2BIG) {
		return added, err
	}
	if !d.full {
		d.full = true
		d.cfg.Log.Warn("the maps of connect time are full, nf_tables carries the connections of further Services [see the limits in docs/ebpf.md]", "err", err)
	}
	for i := range l.slots {
		if err := d.prog.Slots.Delete(connectSlotKey{Front: key, Slot: uint32(i)}); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return added, err
		}
	}
	return added, nil
}

// write writes first the endpoints, then the slots that lead to them, then the front. The endpoints in known have their
// element.
func (d *Datapath) write(key connectAddr, l list, known map[connectAddr]bool) (added int, err error) {
	if len(l.slots) == 0 {
		return 0, nil
	}
	for i, s := range l.slots {
		if !known[s.To] {
			if err := d.addEndpoint(s.To); err != nil {
				return added, err
			}
			known[s.To] = true
		}
		if err := d.prog.Slots.Put(connectSlotKey{Front: key, Slot: uint32(i)}, s); err != nil {
			return added, err
		}
		added++
	}
	return added + 1, d.prog.Fronts.Put(key, connectFront{Slots: uint32(len(l.slots)), Flags: l.flags, Pause: l.pause, Spare: l.spare})
}

// withdrawStale removes the frontends of the maps that the table want does not have with all of their endpoints.
func (d *Datapath) withdrawStale(want *service.Table) (deleted int, err error) {
	held, err := d.readBack()
	if err != nil {
		return 0, err
	}
	wanted := map[connectAddr]*service.Frontend{}
	for f := range want.Frontends() {
		if translatable(f) {
			wanted[addrOf(f.Addr)] = f
		}
	}
	for key, l := range held {
		if f := wanted[key]; f != nil && l.within(f, podsToo(f, &want.Settings)) {
			continue
		}
		n, err := d.withdraw(key)
		if deleted += n; err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

// within reports whether a list has only endpoints of f, and serves pods only if it may.
func (l list) within(f *service.Frontend, pods bool) bool {
	ends := endpointsOf(f)
	return (pods || l.flags&flagPods == 0) && !slices.ContainsFunc(l.slots, func(s connectSlot) bool { return !ends[s.To] })
}

// endpointsOf returns the endpoints of a frontend, which may be nil.
func endpointsOf(f *service.Frontend) map[connectAddr]bool {
	all := map[connectAddr]bool{}
	if !translatable(f) {
		return all
	}
	for _, e := range f.Internal.Endpoints {
		all[addrOf(e.Addr)] = true
	}
	return all
}

// publishAll writes the frontends that differ from the maps.
func (d *Datapath) publishAll(want *service.Table) (added int, err error) {
	held, err := d.readBack()
	if err != nil {
		return 0, err
	}
	known := map[connectAddr]bool{}
	for f := range want.Frontends() {
		if !translatable(f) {
			continue
		}
		key, is := addrOf(f.Addr), d.listOf(f, &want.Settings)
		if was := held[key]; was.equal(is) {
			continue
		}
		if _, err := d.withdraw(key); err != nil {
			return added, err
		}
		n, err := d.publish(key, is, known)
		if added += n; err != nil {
			return added, err
		}
	}
	return added, nil
}

// readBack reads the maps, and removes slots that no front leads to.
func (d *Datapath) readBack() (map[connectAddr]list, error) {
	held := map[connectAddr]list{}
	err := readAll(d.prog.Fronts, func(k connectAddr, f connectFront) {
		held[k] = list{flags: f.Flags, pause: f.Pause, spare: f.Spare, slots: make([]connectSlot, min(f.Slots, 1<<16))}
	})
	if err != nil {
		return nil, fmt.Errorf("read fronts: %w", err)
	}
	var stray []connectSlotKey
	err = readAll(d.prog.Slots, func(k connectSlotKey, s connectSlot) {
		if l := held[k.Front]; k.Slot < uint32(len(l.slots)) {
			l.slots[k.Slot] = s
			return
		}
		stray = append(stray, k)
	})
	if err != nil {
		return nil, fmt.Errorf("read slots: %w", err)
	}
	for _, k := range stray {
		if err := d.prog.Slots.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("delete a stray slot: %w", err)
		}
	}
	return held, nil
}

// readAll calls f with each element of a hash.
func readAll[K, V any](m *ebpf.Map, f func(K, V)) error {
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, batch), make([]V, batch)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			f(keys[i], values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
