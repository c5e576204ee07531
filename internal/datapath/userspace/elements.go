package userspace

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// A set is a map or set of the program, one for each family: its name is followed by 4
// or 6.
type set string

const (
	frontends        set = "frontends"
	outsides         set = "outside"
	nodeports        set = "nodeports"
	nodeportsOutside set = "nodeports-outside"
	endpoints        set = "endpoints"
	endpointsOutside set = "endpoints-outside"
	guarded          set = "guarded"
	sources          set = "sources"
	reserved         set = "reserved"
	affinities       set = "affinity"
	pods             set = "pods"
	nodeportAddrs    set = "nodeport-addresses"
	serviceCIDRs     set = "service-cidrs"
	kept             set = "kept"
	podLinks             = "pod-interfaces"
)

// perFrontend are the sets whose elements belong to a frontend, in the order in which
// additions are written: what leads a packet to the proxy comes last.
var perFrontend = [...]set{endpoints, endpointsOutside, sources, guarded, outsides, nodeportsOutside, frontends, nodeports}

func (s set) name(is4 bool) string {
	if is4 {
		return string(s) + "4"
	}
	return string(s) + "6"
}

// Hows, the data of the frontends' maps.
const (
	howServe  = 1
	howReject = 2
	howDrop   = 3
)

// localBit is the part of an endpoint's data that says it is on this node.
const localBit = 1 << 16

// An element is one that the kernel holds or shall hold. It is comparable: its bytes are
// strings.
type element struct {
	set       set
	is4       bool
	key, last string
	data      string
	comment   string
}

// An id identifies an element.
type id struct {
	set  set
	is4  bool
	key  string
	last string
}

func (e element) id() id { return id{e.set, e.is4, e.key, e.last} }

// write is the Write that puts e in place (add) or takes it away.
func (e element) write(del, add bool) nft.Write {
	w := nft.Write{Set: e.set.name(e.is4), Key: []byte(e.key), Del: del, Add: add, Comment: e.comment}
	if e.data != "" {
		w.Data = []byte(e.data)
	}
	if e.last != "" {
		w.Last = []byte(e.last)
	}
	return w
}

// render returns the elements of a frontend; none for nil. It is pure.
func render(f *service.Frontend) []element {
	if f == nil {
		return nil
	}
	is4 := f.Addr.Addr().Is4()
	front, key := frontKey(f.Key()), frontKey(f.Key())
	in, out := frontends, outsides
	if f.NodePort() {
		in, out, key = nodeports, nodeportsOutside, front[addrSize(is4):]
	}
	all := []element{{set: in, is4: is4, key: key, data: number(how(f.Internal)), comment: comment(f)}}
	for _, e := range f.Internal.Endpoints {
		all = append(all, element{set: endpoints, is4: is4, key: front + endpoint(e.Addr), data: weight(e)})
	}
	if !f.External.Equal(f.Internal) {
		all = append(all, element{set: out, is4: is4, key: key, data: number(how(f.External)), comment: masqueradeWords[f.External.Masquerade]})
		for _, e := range f.External.Endpoints {
			all = append(all, element{set: endpointsOutside, is4: is4, key: front + endpoint(e.Addr), data: weight(e)})
		}
	}
	if len(f.Sources) > 0 {
		all = append(all, element{set: guarded, is4: is4, key: front})
		for _, r := range nft.Ranges(f.Sources, is4) {
			all = append(all, element{set: sources, is4: is4,
				key: front + string(r.From().AsSlice()), last: front + string(r.To().AsSlice())})
		}
	}
	return all
}

func how(r *service.Route) uint32 {
	switch r.Action {
	case service.Reject:
		return howReject
	case service.Drop:
		return howDrop
	}
	return howServe
}

// weight is the data of an endpoint's element.
func weight(e service.Endpoint) string {
	n := uint32(e.Weight)
	if e.Local {
		n |= localBit
	}
	return number(n)
}

// comment says of a frontend what the kernel need not know: "default/web:http far rr
// affinity=3h0m0s local reserved". What policy Local keeps apart counts with affinity only.
func comment(f *service.Frontend) string {
	words := []string{f.Service.String(), masqueradeWords[f.Internal.Masquerade], f.Balance.String()}
	if f.Affinity > 0 {
		words = append(words, "affinity="+f.Affinity.String())
		if f.Internal.Local {
			words = append(words, wordLocal)
		}
		if f.External.Local && f.External != f.Internal {
			words = append(words, wordExternalLocal)
		}
	}
	if f.ClusterIP {
		words = append(words, "reserved")
	}
	return strings.Join(words, " ")
}

// The words of a comment for Route.Local.
const (
	wordLocal         = "local"
	wordExternalLocal = "external-local"
)

// parseComment is the inverse of comment but for wordExternalLocal: the external route
// follows later.
func parseComment(text string, f *service.Frontend) (err error) {
	words := strings.Fields(text)
	if len(words) < 3 {
		return fmt.Errorf("comment %q of a frontend is too short", text)
	}
	if f.Service, err = service.ParsePortName(words[0]); err != nil {
		return err
	}
	if f.Internal.Masquerade, err = parseMasquerade(words[1]); err != nil {
		return err
	}
	if f.Balance, err = service.ParseAlgorithm(words[2]); err != nil {
		return err
	}
	for _, w := range words[3:] {
		lasts, ok := strings.CutPrefix(w, "affinity=")
		switch {
		case ok:
			if f.Affinity, err = time.ParseDuration(lasts); err != nil {
				return err
			}
		case w == wordLocal:
			f.Internal.Local = true
		case w == "reserved":
			f.ClusterIP = true
		}
	}
	return nil
}

// masqueradeWords are the words of a comment for Route.Masquerade. "far" is what the first
// release wrote for MasqueradeOffCluster: it must still read them after a downgrade.
var masqueradeWords = [...]string{
	service.MasqueradeHairpin: "hairpin", service.MasqueradeOffCluster: "far", service.MasqueradeAll: "all",
}

func parseMasquerade(text string) (service.Masquerade, error) {
	if i := slices.Index(masqueradeWords[:], text); i >= 0 {
		return service.Masquerade(i), nil
	}
	return 0, fmt.Errorf("masquerade %q is not known", text)
}

// Keys and data as the kernel keeps them: each field of a concatenation in network
// order, padded to four bytes; numbers that are no packet fields in the machine's order.

func number(n uint32) string { return string(binary.NativeEndian.AppendUint32(nil, n)) }

func parseNumber(b string) (uint32, error) {
	if len(b) < 4 {
		return 0, fmt.Errorf("number has %d bytes", len(b))
	}
	return binary.NativeEndian.Uint32([]byte(b)), nil
}

func port(n uint16) string { return string([]byte{byte(n >> 8), byte(n), 0, 0}) }

func endpoint(a netip.AddrPort) string { return string(a.Addr().AsSlice()) + port(a.Port()) }

// frontKey is address, protocol and port; a NodePort's address is the unspecified one.
func frontKey(k service.Key) string {
	return string(k.Addr.Addr().AsSlice()) + string([]byte{byte(k.Proto), 0, 0, 0}) + port(k.Addr.Port())
}

func addrSize(is4 bool) int {
	if is4 {
		return 4
	}
	return 16
}

// parseEndpoint is the inverse of endpoint, and returns what is behind it.
func parseEndpoint(b string, is4 bool) (a netip.AddrPort, rest string, err error) {
	size := addrSize(is4)
	if len(b) < size+4 {
		return a, "", fmt.Errorf("address and port have %d bytes", len(b))
	}
	addr, _ := netip.AddrFromSlice([]byte(b[:size]))
	return netip.AddrPortFrom(addr, uint16(b[size])<<8|uint16(b[size+1])), b[size+4:], nil
}

// parseFrontKey is the inverse of frontKey, and returns what is behind it.
func parseFrontKey(b string, is4 bool) (k service.Key, rest string, err error) {
	size := addrSize(is4)
	if len(b) < size+8 {
		return k, "", fmt.Errorf("frontend's key has %d bytes", len(b))
	}
	addr, _ := netip.AddrFromSlice([]byte(b[:size]))
	k = service.Key{
		Addr:  netip.AddrPortFrom(addr, uint16(b[size+4])<<8|uint16(b[size+5])),
		Proto: service.Proto(b[size]),
	}
	return k, b[size+8:], nil
}

// front returns the frontend that e belongs to, and what is behind it in e's key.
func (e element) front() (service.Key, string, error) {
	key := e.key
	if e.set == nodeports || e.set == nodeportsOutside {
		key = string(make([]byte, addrSize(e.is4))) + key
	}
	return parseFrontKey(key, e.is4)
}

// parse makes frontends of elements: the inverse of render. What belongs to no frontend
// is left out: a Sync will take it away.
func parse(all []element) ([]*service.Frontend, error) {
	found, externalLocal := map[service.Key]*service.Frontend{}, map[service.Key]bool{}
	for _, e := range all {
		if e.set != frontends && e.set != nodeports {
			continue
		}
		f := &service.Frontend{Internal: &service.Route{}}
		k, _, err := e.front()
		if err != nil {
			return nil, err
		}
		f.Addr, f.Proto = k.Addr, k.Proto
		if err := parseComment(e.comment, f); err != nil {
			return nil, err
		}
		if err := parseHow(f.Internal, e.data); err != nil {
			return nil, err
		}
		f.External = f.Internal
		found[k], externalLocal[k] = f, slices.Contains(strings.Fields(e.comment), wordExternalLocal)
	}
	for _, e := range all { // before their endpoints
		if e.set != outsides && e.set != nodeportsOutside {
			continue
		}
		k, _, err := e.front()
		if err != nil {
			return nil, err
		}
		if f := found[k]; f != nil {
			f.External = &service.Route{Local: externalLocal[k]}
			if f.External.Masquerade, err = parseMasquerade(e.comment); err != nil {
				return nil, err
			}
			if err := parseHow(f.External, e.data); err != nil {
				return nil, err
			}
		}
	}
	for _, e := range all {
		k, rest, err := e.front()
		if err != nil {
			return nil, err
		}
		if f := found[k]; f != nil {
			if err := e.addTo(f, rest); err != nil {
				return nil, err
			}
		}
	}
	out := make([]*service.Frontend, 0, len(found))
	for _, f := range found {
		slices.SortFunc(f.Sources, netip.Prefix.Compare)
		for _, r := range [...]*service.Route{f.Internal, f.External} {
			slices.SortFunc(r.Endpoints, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
		}
		out = append(out, f)
	}
	return out, nil
}

func parseHow(r *service.Route, data string) error {
	n, err := parseNumber(data)
	if err != nil {
		return err
	}
	switch n {
	case howServe:
	case howReject:
		r.Action = service.Reject
	case howDrop:
		r.Action = service.Drop
	default:
		return fmt.Errorf("how %d is not known", n)
	}
	return nil
}

// addTo adds an endpoint or a source to its frontend.
func (e element) addTo(f *service.Frontend, rest string) error {
	route := f.Internal
	switch e.set {
	case endpointsOutside:
		if route = f.External; route == f.Internal {
			return nil // a rest of earlier
		}
		fallthrough
	case endpoints:
		addr, _, err := parseEndpoint(rest, e.is4)
		if err != nil {
			return err
		}
		n, err := parseNumber(e.data)
		if err != nil {
			return err
		}
		route.Endpoints = append(route.Endpoints, service.Endpoint{Addr: addr, Local: n&localBit != 0, Weight: uint16(n)})
	case sources:
		size := addrSize(e.is4)
		if len(rest) < size || len(e.last) != len(e.key) {
			return fmt.Errorf("range of sources has %d and %d bytes", len(e.key), len(e.last))
		}
		from, _ := netip.AddrFromSlice([]byte(rest[:size]))
		to, _ := netip.AddrFromSlice([]byte(e.last[len(e.last)-size:]))
		f.Sources = append(f.Sources, netipx.IPRangeFrom(from, to).Prefixes()...)
	}
	return nil
}

// seconds is how times stand in the kernel.
func seconds(t time.Time) uint32 { return uint32(t.Unix()) }

// String names the element in messages.
func (e element) String() string { return e.set.name(e.is4) + " " + strconv.Quote(e.key) }
