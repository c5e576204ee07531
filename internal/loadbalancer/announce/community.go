package announce

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// A CommunityValue is a BGP community: A:B, two numbers of 16 bits, or large:A:B:C, three of 32.
type CommunityValue struct {
	Large   bool
	A, B, C uint32
}

// GracefulShutdown asks routers to prefer other routes before this one ends (RFC 8326).
var GracefulShutdown = CommunityValue{A: 65535, B: 0}

// ParseCommunity reads "1234:5678" or "large:1:2:3".
func ParseCommunity(text string) (CommunityValue, error) {
	rest, large := strings.CutPrefix(text, "large:")
	parts, want, bits := strings.Split(rest, ":"), 2, 16
	if large {
		want, bits = 3, 32
	}
	var n [3]uint32
	bad := len(parts) != want
	for i := 0; i < want && !bad; i++ {
		v, err := strconv.ParseUint(parts[i], 10, bits)
		bad = err != nil || parts[i][0] == '+'
		n[i] = uint32(v)
	}
	if bad {
		return CommunityValue{}, fmt.Errorf("%q is neither a community such as 1234:5678 nor one such as large:1:2:3", api.Cut(text, 100))
	}
	return CommunityValue{large, n[0], n[1], n[2]}, nil
}

// String is the inverse of ParseCommunity.
func (c CommunityValue) String() string {
	if c.Large {
		return fmt.Sprintf("large:%d:%d:%d", c.A, c.B, c.C)
	}
	return fmt.Sprintf("%d:%d", c.A, c.B)
}

// Number returns the 32 bits of a community that is not large.
func (c CommunityValue) Number() uint32 { return c.A<<16 | c.B }

func (c CommunityValue) compare(o CommunityValue) int {
	large := func(c CommunityValue) int {
		if c.Large {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(large(c), large(o)), cmp.Compare(c.A, o.A), cmp.Compare(c.B, o.B), cmp.Compare(c.C, o.C))
}

// communityAliases returns the names that Community objects give to communities.
func communityAliases(all []*Community) map[string]string {
	names := map[string]string{}
	for _, c := range all {
		if len(c.Problems) > 0 {
			continue
		}
		for _, a := range c.Aliases {
			names[a.Name] = a.Value
		}
	}
	return names
}

// communities reads the communities of an advertisement. An unknown one is an error, because a route without NO_EXPORT,
// for example, may be worse than no route.
func communities(texts []string, aliases map[string]string) (all []CommunityValue, err error) {
	for _, text := range texts {
		value := text
		if !strings.Contains(text, ":") {
			known := false
			if value, known = aliases[text]; !known {
				return nil, fmt.Errorf("no Community has an alias %q", api.Cut(text, 100))
			}
		}
		c, err := ParseCommunity(value)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}
