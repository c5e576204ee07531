package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
)

// sweepAfter is how many withdrawn frontends make a sweep worth its cost. sweepPause is longer than any run of a
// program, so that no program still counts at an endpoint of a withdrawn frontend.
const (
	sweepAfter = 256
	sweepPause = time.Second
	// sweepEjected is how long the programs remember an ejection.
	sweepEjected = 10 * time.Minute
)

// unused says when the map of endpoints may have elements without a purpose.
type unused struct {
	frontends int       // withdrawn since the last sweep
	last      time.Time // of these
}

func (u *unused) withdrawn() { u.frontends, u.last = u.frontends+1, time.Now() }

// due reports whether a sweep is worth its cost, in relation to the number of frontends.
func (u *unused) due(frontends int) bool {
	return u.frontends >= max(sweepAfter, frontends/2) && time.Since(u.last) > sweepPause
}

// addEndpoint gives an endpoint its element. An element that is there keeps its counts.
func (d *Datapath) addEndpoint(a connectAddr) error {
	err := d.prog.Endpoints.Update(a, connectEndpoint{}, ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("add an endpoint: %w", err)
	}
	return nil
}

// sweep removes the endpoints that no frontend has, and that have no open socket.
func (d *Datapath) sweep() error {
	if d.table == nil {
		return nil
	}
	if _, frontends := d.table.Len(); !d.unused.due(frontends) {
		return nil
	}
	at, err := now()
	if err != nil {
		return err
	}
	used := map[connectAddr]bool{}
	for f := range d.table.Frontends() {
		if translatable(f) {
			for _, e := range f.Internal.Endpoints {
				used[addrOf(e.Addr)] = true
			}
		}
	}
	var old []connectAddr
	err = readAll(d.prog.Endpoints, func(a connectAddr, e connectEndpoint) {
		if !used[a] && e.Open == 0 && e.Until+uint64(sweepEjected) < at {
			old = append(old, a)
		}
	})
	for _, a := range old {
		if err != nil {
			break
		}
		if err = d.prog.Endpoints.Delete(a); errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("sweep endpoints: %w", err)
	}
	d.unused = unused{}
	return nil
}

// addrPort is the inverse of addrOf.
func (c connectAddr) addrPort() netip.AddrPort {
	var ip [16]byte
	for i, word := range c.Ip {
		binary.NativeEndian.PutUint32(ip[4*i:], word)
	}
	var port [2]byte
	binary.NativeEndian.PutUint16(port[:], c.Port)
	return netip.AddrPortFrom(netip.AddrFrom16(ip).Unmap(), binary.BigEndian.Uint16(port[:]))
}
