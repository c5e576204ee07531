package userspace

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// Sets that only this mode has.
const (
	endpoints           nftset.Set = "endpoints"
	endpointsExternal   nftset.Set = "endpoints-external"
	affinityClients     nftset.Set = "affinity"
	orphanedConnections nftset.Set = "orphaned-connections"
)

// frontendSets has all sets with elements of frontends, except the sets for source ranges.
var frontendSets = [...]nftset.Set{
	endpoints, endpointsExternal, nftset.FrontendsExternal, nftset.NodeportsExternal, nftset.Frontends, nftset.Nodeports,
}

// Verdict IDs, the data of the frontends' maps.
const (
	verdictServe  = 1
	verdictReject = 2
	verdictDrop   = 3
)

// localBit is set in an endpoint's data if the endpoint is on this node.
const localBit = 1 << 16

// An element is an element of a set, in the kernel or wanted. It is comparable, because its bytes are strings.
type element struct {
	set     nftset.Set
	is4     bool
	key     string
	data    string
	comment string
}

// An elementID identifies an element.
type elementID struct {
	set nftset.Set
	is4 bool
	key string
}

func (e element) id() elementID { return elementID{e.set, e.is4, e.key} }

// write returns the Write that adds or deletes e.
func (e element) write(del, add bool) nft.Write {
	w := nft.Write{Set: e.set.Name(e.is4), Key: []byte(e.key), Del: del, Add: add, Comment: e.comment}
	if e.data != "" {
		w.Data = []byte(e.data)
	}
	return w
}

// forwards reports whether the proxy can relay a protocol.
func forwards(p api.Proto) bool { return p == api.TCP || p == api.UDP }

// relayable returns the route that the proxy can serve. If the proxy cannot relay the protocol, the kernel rejects the
// packets.
func relayable(p api.Proto, r *service.Route) *service.Route {
	if r.Action == service.Forward && !forwards(p) {
		return &service.Route{Action: service.Reject}
	}
	return r
}

// render returns the elements of a frontend, except its sources. f may be nil.
func render(f *service.Frontend) []element {
	_, is := renderChange(nil, f)
	return is
}

// renderChange returns the elements of a frontend before and after a change, without the elements of endpoints that did
// not change. A Service can have tens of thousands of endpoints, and one pass changes only a few.
func renderChange(old, new *service.Frontend) (was, is []element) {
	f := new
	if f == nil {
		f = old
	}
	if f == nil {
		return nil, nil
	}
	is4, full := f.Addr.Addr().Is4(), fullKey(f.Key())
	before, now := renderRoutes(old), renderRoutes(new)
	for i, set := range [...]nftset.Set{endpoints, endpointsExternal} {
		from, to := before[i], now[i]
		was, is = append(was, from.entry...), append(is, to.entry...)
		for o, n := range service.Differing(from.endpoints, to.endpoints) {
			if o != nil {
				was = append(was, element{set: set, is4: is4, key: full + addrPortText(o.Addr), data: weight(*o)})
			}
			if n != nil {
				is = append(is, element{set: set, is4: is4, key: full + addrPortText(n.Addr), data: weight(*n)})
			}
		}
	}
	return was, is
}

// A renderedRoute has the element that leads to a route, if there is one, and the route's endpoints.
type renderedRoute struct {
	entry     []element
	endpoints []service.Endpoint
}

// renderRoutes returns the routes for internal and external clients. The second is empty if it equals the first.
func renderRoutes(f *service.Frontend) (all [2]renderedRoute) {
	if f == nil {
		return all
	}
	is4, key := f.Addr.Addr().Is4(), string(nftset.FrontendKey(f.Key()))
	entry, externalEntry := nftset.Frontends, nftset.FrontendsExternal
	if f.NodePort() {
		entry, externalEntry = nftset.Nodeports, nftset.NodeportsExternal
	}
	internal, external := relayable(f.Proto, f.Internal), relayable(f.Proto, f.External)
	all[0] = renderedRoute{[]element{{set: entry, is4: is4, key: key, data: number(verdictFor(internal)), comment: comment(f, internal, external)}}, internal.Endpoints}
	if !external.Equal(internal) {
		all[1] = renderedRoute{[]element{{set: externalEntry, is4: is4, key: key, data: number(verdictFor(external)), comment: masqueradeWords[external.Masquerade]}}, external.Endpoints}
	}
	return all
}

func verdictFor(r *service.Route) uint32 {
	switch r.Action {
	case service.Reject:
		return verdictReject
	case service.Drop:
		return verdictDrop
	}
	return verdictServe
}

// weight returns the data of an endpoint's element.
func weight(e service.Endpoint) string {
	n := uint32(e.Weight)
	if e.Local {
		n |= localBit
	}
	return number(n)
}

// comment returns the comment of a frontend's element. It has the properties of the frontend that only Adopt and people
// read, for example "default/web:http far rr affinity=3h0m0s local reserved". The words for policy Local matter only
// with affinity.
func comment(f *service.Frontend, internal, external *service.Route) string {
	words := []string{f.Service.String(), masqueradeWords[internal.Masquerade], f.Balance.String()}
	if f.Affinity > 0 {
		words = append(words, "affinity="+f.Affinity.String())
		if internal.Local {
			words = append(words, wordLocal)
		}
		if external.Local && external != internal {
			words = append(words, wordExternalLocal)
		}
	}
	if f.ClusterIP {
		words = append(words, "reserved")
	}
	if f.LoadBalancer {
		words = append(words, wordLoadBalancer)
	}
	if f.OnNode {
		words = append(words, wordOnNode)
	}
	return strings.Join(words, " ")
}

// Words of a comment, for Route.Local, Frontend.LoadBalancer and Frontend.OnNode.
const (
	wordLocal         = "local"
	wordExternalLocal = "external-local"
	wordLoadBalancer  = "load-balancer"
	wordOnNode        = "on-node"
)

// parseComment is the inverse of comment, except that it ignores wordExternalLocal: the caller sets the external route
// later.
func parseComment(text string, f *service.Frontend) (err error) {
	words := strings.Fields(text)
	if len(words) < 3 {
		return fmt.Errorf("comment %q of a frontend is too short", text)
	}
	if f.Service, err = api.ParsePortName(words[0]); err != nil {
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
		case w == wordLoadBalancer:
			f.LoadBalancer = true
		case w == wordOnNode:
			f.OnNode = true
		}
	}
	return nil
}

// masqueradeWords are the words of a comment for Route.Masquerade.
var masqueradeWords = [...]string{
	service.MasqueradeHairpin: "hairpin", service.MasqueradeOffCluster: "far", service.MasqueradeAll: "all",
}

func parseMasquerade(text string) (service.Masquerade, error) {
	if i := slices.Index(masqueradeWords[:], text); i >= 0 {
		return service.Masquerade(i), nil
	}
	return 0, fmt.Errorf("masquerade %q is unknown", text)
}

// Keys and data are strings, so that elements can be compared.

func number(n uint32) string { return string(nftset.Number(n)) }

func addrPortText(a netip.AddrPort) string { return string(nftset.AddrPort(a)) }

// fullKey returns address, protocol and port. The address of a NodePort is the unspecified one.
func fullKey(k service.Key) string {
	key := string(nftset.FrontendKey(k))
	if k.Addr.Addr().IsUnspecified() {
		key = string(k.Addr.Addr().AsSlice()) + key
	}
	return key
}

// frontend returns the key of the frontend that has e, and the rest of e's key.
func (e element) frontend() (service.Key, []byte, error) {
	nodePort := e.set == nftset.Nodeports || e.set == nftset.NodeportsExternal
	size := nftset.AddrSize(e.is4) + 8
	if nodePort {
		size = 8
	}
	n := min(size, len(e.key))
	k, err := nftset.ParseFrontendKey([]byte(e.key[:n]), e.is4, nodePort)
	return k, []byte(e.key[n:]), err
}

// parse is the inverse of render. It ignores elements without a frontend: the next Sync removes them.
func parse(all []element) ([]*service.Frontend, error) {
	found, externalLocal := map[service.Key]*service.Frontend{}, map[service.Key]bool{}
	for _, e := range all {
		if e.set != nftset.Frontends && e.set != nftset.Nodeports {
			continue
		}
		f := &service.Frontend{Internal: &service.Route{}}
		k, _, err := e.frontend()
		if err != nil {
			return nil, err
		}
		f.Addr, f.Proto = k.Addr, k.Proto
		if err := parseComment(e.comment, f); err != nil {
			return nil, err
		}
		if err := parseVerdict(f.Internal, e.data); err != nil {
			return nil, err
		}
		f.External = f.Internal
		found[k], externalLocal[k] = f, slices.Contains(strings.Fields(e.comment), wordExternalLocal)
	}
	for _, e := range all { // the external routes, before endpoints are added to them
		if e.set != nftset.FrontendsExternal && e.set != nftset.NodeportsExternal {
			continue
		}
		k, _, err := e.frontend()
		if err != nil {
			return nil, err
		}
		if f := found[k]; f != nil {
			f.External = &service.Route{Local: externalLocal[k]}
			if f.External.Masquerade, err = parseMasquerade(e.comment); err != nil {
				return nil, err
			}
			if err := parseVerdict(f.External, e.data); err != nil {
				return nil, err
			}
		}
	}
	for _, e := range all {
		k, rest, err := e.frontend()
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
		for _, r := range [...]*service.Route{f.Internal, f.External} {
			slices.SortFunc(r.Endpoints, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
		}
		out = append(out, f)
	}
	return out, nil
}

func parseVerdict(r *service.Route, data string) error {
	n, err := nftset.ParseNumber([]byte(data))
	if err != nil {
		return err
	}
	switch n {
	case verdictServe:
	case verdictReject:
		r.Action = service.Reject
	case verdictDrop:
		r.Action = service.Drop
	default:
		return fmt.Errorf("verdict ID %d is unknown", n)
	}
	return nil
}

// addTo adds an endpoint to its frontend.
func (e element) addTo(f *service.Frontend, rest []byte) error {
	route := f.Internal
	switch e.set {
	case endpointsExternal:
		if route = f.External; route == f.Internal {
			return nil // left by an earlier Sync
		}
		fallthrough
	case endpoints:
		addr, _, err := nftset.ParseAddrPort(rest, e.is4)
		if err != nil {
			return err
		}
		n, err := nftset.ParseNumber([]byte(e.data))
		if err != nil {
			return err
		}
		route.Endpoints = append(route.Endpoints, service.Endpoint{Addr: addr, Local: n&localBit != 0, Weight: uint16(n)})
	}
	return nil
}

// String names the element in messages.
func (e element) String() string { return e.set.Name(e.is4) + " " + strconv.Quote(e.key) }
