package service

import (
	"net/netip"
	"slices"
)

// pieces is how many times the most that a step changes it changes of one frontend with many
// endpoints: to look at all of them costs more than to change some.
const pieces = 2

// inARow is how many steps one Service has before it is the next one's turn: enough for 50,000
// endpoints. For each new number of endpoints a datapath may need an object of its own (mode
// nftables a chain), which costs the kernel more the more endpoints there are: so the first of
// several large Services makes those that the others need too, while there are few.
const inARow = 64

// split returns a frontend on the way from one to another, which differs from old in about
// piece endpoints; nil if it goes and has no more than these. One of the two may be nil.
func split(old, new *Frontend, piece int) *Frontend {
	if new == nil {
		return shrink(old, piece)
	}
	was := [2]*Route{{}, {}}
	shared := new.Internal == new.External
	if old != nil {
		was = [2]*Route{old.Internal, old.External}
		shared = shared && old.Internal == old.External
	}
	mixed := *new
	mixed.Internal = splitRoute(was[0], new.Internal, piece)
	if mixed.External = mixed.Internal; !shared {
		mixed.External = splitRoute(was[1], new.External, piece)
	}
	mixed.Retained = retained(old, new)
	return &mixed
}

// shrink returns a frontend that goes without piece of its endpoints.
func shrink(f *Frontend, piece int) *Frontend {
	if len(f.Internal.Endpoints) <= piece && len(f.External.Endpoints) <= piece {
		return nil
	}
	mixed := *f
	mixed.Internal = shrinkRoute(f.Internal, piece)
	if mixed.External = mixed.Internal; f.Internal != f.External {
		mixed.External = shrinkRoute(f.External, piece)
	}
	return &mixed
}

// shrinkRoute returns a route without its last endpoints, if it has more.
func shrinkRoute(r *Route, piece int) *Route {
	if len(r.Endpoints) <= piece {
		return r
	}
	short := *r
	short.Endpoints = r.Endpoints[:len(r.Endpoints)-piece]
	return &short
}

// splitRoute returns a route with the endpoints of both that are the same, and of the changes
// about piece: endpoints that go, then those that come. If all endpoints are others, those
// that come are first, so that it is never without one.
func splitRoute(old, new *Route, piece int) *Route {
	if differences(old.Endpoints, new.Endpoints) <= piece {
		return new
	}
	if len(new.Endpoints) == 0 { // they go, before the clients are refused
		return shrinkRoute(old, piece)
	}
	mixed := *new
	begin, was, is, end := apart(old.Endpoints, new.Endpoints)
	// A list that only grows at its end, or shrinks at its begin, is part of the other: a copy of tens of
	// thousands for each step is what the loop would wait for, with the garbage collector.
	switch {
	case len(was)+len(end) == 0:
		mixed.Endpoints = slices.Clip(new.Endpoints[:len(begin)+piece])
		return &mixed
	case len(is)+len(begin) == 0:
		mixed.Endpoints = old.Endpoints[piece:]
		return &mixed
	}
	common := len(begin) + len(end)
	for a, b := range sideBySide(was, is) {
		if a != nil && b != nil {
			common++
		}
	}
	goes, comes := len(old.Endpoints)-common, len(new.Endpoints)-common
	if common > 0 {
		goes = min(goes, piece)
		comes = min(comes, piece-goes)
	} else {
		comes = min(comes, piece)
		goes = min(goes, piece-comes)
	}
	others := piece - goes - comes
	mixed.Endpoints = append(make([]Endpoint, 0, len(old.Endpoints)-goes+comes), begin...)
	for a, b := range sideBySide(was, is) {
		switch {
		case a == nil && comes > 0:
			comes--
			mixed.Endpoints = append(mixed.Endpoints, *b)
		case a == nil:
		case b == nil && goes > 0:
			goes--
		case b == nil:
			mixed.Endpoints = append(mixed.Endpoints, *a)
		case *a != *b && others <= 0: // its weight, or where it is
			mixed.Endpoints = append(mixed.Endpoints, *a)
		default:
			if *a != *b {
				others--
			}
			mixed.Endpoints = append(mixed.Endpoints, *b)
		}
	}
	mixed.Endpoints = append(mixed.Endpoints, end...)
	return &mixed
}

// retained are the endpoints that keep their flows on the way from old, which may be nil, to new:
// all that new has, in its routes already or not. The next step on this way finds the list in old.
func retained(old, new *Frontend) []netip.AddrPort {
	if old != nil && len(new.Retained) == 0 && new.Internal == new.External && slices.EqualFunc(old.Retained, new.Internal.Endpoints,
		func(a netip.AddrPort, e Endpoint) bool { return a == e.Addr }) {
		return old.Retained
	}
	return new.FlowEndpoints()
}
