package ipvs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

// tableName is the nft table around IPVS. Its sets are explained in ruleset.nft.tmpl.
const (
	tableName = numbers.TableIPVS
	podLinks  = "pod-interfaces"
)

// Where virtual servers are: ranges that are nobody's. 240.0.0.0/4 is reserved and never
// routed; the other one is a unique local prefix.
var (
	own4 = netip.MustParsePrefix(numbers.RangeIPVS4)
	own6 = netip.MustParsePrefix(numbers.RangeIPVS6)
)

// serverPort is every virtual server's: no local socket is there by chance (tcpmux).
const serverPortNumber = 1

// maxServers is how many virtual servers fit into own4.
const maxServers = 1<<22 - 2

// own reports whether an address is a virtual server's of ours.
func own(a netip.Addr) bool { return own4.Contains(a) || own6.Contains(a) }

// ownAddr returns the nth address for a virtual server, n > 0.
func ownAddr(is4 bool, n uint32) netip.Addr {
	if is4 {
		b := own4.Addr().As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
		return netip.AddrFrom4(b)
	}
	b := own6.Addr().As16()
	binary.BigEndian.PutUint32(b[12:], n)
	return netip.AddrFrom16(b)
}

// ownNumber is the inverse of ownAddr.
func ownNumber(a netip.Addr) uint32 {
	if a.Is4() {
		b, from := a.As4(), own4.Addr().As4()
		return binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(from[:])
	}
	b := a.As16()
	return binary.BigEndian.Uint32(b[12:])
}

// families are the two of them.
var families = [...]bool{true, false}

// name returns the kernel's name of a set of a family.
func name(set string, is4 bool) string {
	if is4 {
		return set + "4"
	}
	return set + "6"
}

// maps returns the names of the maps that lead from a frontend to its how and to its
// virtual server.
func maps(nodePort, outside bool) (hows, servers string) {
	switch {
	case nodePort && outside:
		return "nodeports-outside", "nodeport-servers-outside"
	case nodePort:
		return "nodeports", "nodeport-servers"
	case outside:
		return "outside", "servers-outside"
	}
	return "frontends", "servers"
}

// A how says what becomes of a packet. Its bits are explained in ruleset.nft.tmpl. Zero
// stands for "no element".
type how uint32

const (
	howFar      how = 1 << 16
	howAll      how = 2 << 16
	howOutside  how = 4 << 16
	howNodePort how = 8 << 16
	howServe    how = 1
	howReject   how = 0xf000<<16 | 1
	howDrop     how = 0xf000<<16 | 2
)

// howTo translates a route.
func howTo(r *service.Route, nodePort, outside bool) how {
	switch r.Action {
	case service.Reject:
		return howReject
	case service.Drop:
		return howDrop
	}
	h := howServe
	switch r.Masquerade {
	case service.MasqueradeOffCluster:
		h |= howFar
	case service.MasqueradeAll:
		h |= howAll
	}
	if nodePort {
		h |= howNodePort
	}
	if outside {
		h |= howOutside
	}
	return h
}

// route is the inverse of howTo but for the endpoints.
func (h how) route() *service.Route {
	switch {
	case h == howReject:
		return &service.Route{Action: service.Reject}
	case h == howDrop:
		return &service.Route{Action: service.Drop}
	case h&howAll != 0:
		return &service.Route{Masquerade: service.MasqueradeAll}
	case h&howFar != 0:
		return &service.Route{Masquerade: service.MasqueradeOffCluster}
	}
	return &service.Route{}
}

// A note is the comment of a frontend's element: what a person wants to read there, and
// what its virtual server cannot tell: "default/web:http rr 10800s local".
type note struct {
	service  service.PortName
	balance  service.Algorithm
	affinity time.Duration
	// local and externalLocal are Route.Local of the two routes; false without affinity.
	local, externalLocal bool
}

func noteOf(f *service.Frontend) note {
	n := note{service: f.Service, balance: f.Balance, affinity: time.Duration(persistence(f)) * time.Second}
	if n.affinity > 0 {
		n.local, n.externalLocal = f.Internal.Local, f.External.Local
	}
	return n
}

// persistence is the affinity of f in seconds, as IPVS counts; 0 only for none.
func persistence(f *service.Frontend) uint32 {
	if f.Affinity <= 0 {
		return 0
	}
	return uint32(max(f.Affinity/time.Second, 1))
}

func (n note) String() string {
	words := []string{n.service.String()}
	if n.balance != service.Random {
		words = append(words, n.balance.String())
	}
	if n.affinity > 0 {
		words = append(words, fmt.Sprintf("%ds", n.affinity/time.Second))
	}
	if n.local {
		words = append(words, "local")
	}
	if n.externalLocal {
		words = append(words, "external-local")
	}
	return strings.Join(words, " ")
}

// parseNote is the inverse of String.
func parseNote(text string) (n note, err error) {
	words := strings.Split(text, " ")
	if n.service, err = service.ParsePortName(words[0]); err != nil {
		return n, err
	}
	for _, w := range words[1:] {
		switch w {
		case "local":
			n.local = true
			continue
		case "external-local":
			n.externalLocal = true
			continue
		}
		if number, ok := strings.CutSuffix(w, "s"); ok {
			if seconds, err := strconv.Atoi(number); err == nil {
				n.affinity = time.Duration(seconds) * time.Second
				continue
			}
		}
		if n.balance, err = service.ParseAlgorithm(w); err != nil {
			return n, fmt.Errorf("comment %q: %w", text, err)
		}
	}
	return n, nil
}

// scheduler returns IPVS' name of an algorithm. Those that come in two sorts heed weights
// only in one.
func scheduler(a service.Algorithm, weighted bool) string {
	switch a {
	case service.LeastConn:
		if weighted {
			return "wlc"
		}
		return "lc"
	case service.SourceHash:
		return "sh"
	case service.DestHash:
		return "dh"
	case service.ShortestDelay:
		return "sed"
	case service.NeverQueue:
		return "nq"
	case service.Maglev:
		return "mh"
	}
	// IPVS has nothing random; one after the other is as even, and nobody's expectation
	// is hurt.
	if weighted {
		return "wrr"
	}
	return "rr"
}

// Keys and data of elements, as the kernel keeps them: each field of a concatenation in
// network order, padded to four bytes; hows in the byte order of the machine.

// frontKey is the key of a frontend's element.
func frontKey(k service.Key) []byte {
	var b []byte
	if !k.Addr.Addr().IsUnspecified() {
		b = k.Addr.Addr().AsSlice()
	}
	return portKey(append(b, byte(k.Proto), 0, 0, 0), k.Addr.Port())
}

func portKey(b []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

// parseFrontKey is the inverse of frontKey. nodePort tells which kind of map it is from.
func parseFrontKey(b []byte, is4, nodePort bool) (service.Key, error) {
	size := addrSize(is4)
	addr := netip.IPv6Unspecified()
	if is4 {
		addr = netip.IPv4Unspecified()
	}
	if nodePort {
		size = 0
	}
	if len(b) != size+8 {
		return service.Key{}, fmt.Errorf("frontend key has %d bytes, want %d", len(b), size+8)
	}
	if !nodePort {
		addr, _ = netip.AddrFromSlice(b[:size])
	}
	return service.Key{
		Addr:  netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[size+4:])),
		Proto: service.Proto(b[size]),
	}, nil
}

// serverData is the data of an element that leads to a virtual server.
func serverData(a netip.AddrPort) []byte { return portKey(a.Addr().AsSlice(), a.Port()) }

// parseServerData is the inverse of serverData.
func parseServerData(b []byte, is4 bool) (netip.AddrPort, error) {
	size := addrSize(is4)
	if len(b) < size+2 {
		return netip.AddrPort{}, fmt.Errorf("virtual server has %d bytes", len(b))
	}
	addr, _ := netip.AddrFromSlice(b[:size])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[size:])), nil
}

func howData(h how) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(h)) }

// parseHow is the inverse of howData.
func parseHow(b []byte) (how, error) {
	if len(b) < 4 {
		return 0, fmt.Errorf("how has %d bytes", len(b))
	}
	return how(binary.NativeEndian.Uint32(b)), nil
}

func addrSize(is4 bool) int {
	if is4 {
		return 4
	}
	return 16
}
