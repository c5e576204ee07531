package gateway

import (
	"cmp"
	"fmt"
	"net/textproto"
	"regexp"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// An entry is one match of a rule: a condition, and its rank among the entries of a host. It is immutable.
type entry struct {
	rule    *Rule
	path    pathMatch
	method  string // empty: all
	headers []valueMatch
	query   []valueMatch
	rank    rank
}

// A pathKind is the way in which a path is compared.
type pathKind uint8

const (
	byElements pathKind = iota // the path or one of its parents, element by element
	byText                     // a prefix of the text (ImplementationSpecific of an Ingress, as nginx does it)
	byExact                    // the whole path
	byPattern                  // a regular expression
)

// A pathMatch compares a path. value has no final slash if kind is byElements.
type pathMatch struct {
	kind  pathKind
	value string
	regex *regexp.Regexp
}

// A valueMatch compares a header or a query parameter.
type valueMatch struct {
	name  string // of a header: canonical
	value string
	regex *regexp.Regexp // not nil: in place of value
	not   bool           // the request must not have the value, or not have the name (canary)
	any   bool           // any value counts
}

// A rank orders entries: the entry with the smaller rank wins.
type rank struct {
	class          uint8 // 2 exact path, 1 regular expression, 0 prefix
	length         int   // twice the length of the path, one more for a final slash of a prefix
	method         int   // of a gRPC method; 1 for an HTTP method
	headers, query int
	created        int64
	route          api.Name
	rule, match    int
}

// compare returns a negative number if a wins.
func (a *rank) compare(b *rank) int {
	return cmp.Or(
		cmp.Compare(b.class, a.class), cmp.Compare(b.length, a.length), cmp.Compare(b.method, a.method),
		cmp.Compare(b.headers, a.headers), cmp.Compare(b.query, a.query),
		cmp.Compare(a.created, b.created), a.route.Compare(b.route), cmp.Compare(a.rule, b.rule), cmp.Compare(a.match, b.match),
	)
}

// of completes an entry of a rule.
func (e *entry) of(rule *Rule, m *Meta, match int) *entry {
	e.rule = rule
	e.rank.headers, e.rank.query = len(e.headers), len(e.query)
	e.rank.created, e.rank.route, e.rank.rule, e.rank.match = m.Created, m.Name, rule.Index, match
	return e
}

// httpEntry compiles a condition of an HTTPRoute.
func httpEntry(m *HTTPMatch) (*entry, error) {
	e := &entry{method: m.Method}
	if m.Method != "" {
		e.rank.method = 1
	}
	value := cmp.Or(m.Path.Value, "/")
	switch m.Path.Type {
	case "", "PathPrefix":
		e.prefix(byElements, value)
	case "Exact":
		e.exact(value)
	case "RegularExpression":
		re, err := compilePattern(value, "^", "$")
		if err != nil {
			return nil, err
		}
		e.path = pathMatch{kind: byPattern, value: value, regex: re}
		e.rank.class, e.rank.length = 1, 2*len(value)
	default:
		return nil, fmt.Errorf("path match of type %q is not supported", m.Path.Type)
	}
	return e, e.values(m.Headers, m.Query)
}

func (e *entry) exact(value string) {
	e.path = pathMatch{kind: byExact, value: normalPattern(value)}
	e.rank.class, e.rank.length = 2, 2*len(e.path.value)
}

func (e *entry) prefix(kind pathKind, value string) {
	value = normalPattern(value)
	key := value
	if kind == byElements {
		key = strings.TrimSuffix(value, "/")
	}
	e.path = pathMatch{kind: kind, value: key}
	e.rank.length = 2*len(key) + len(value) - len(key)
}

// values compiles the conditions of headers and query parameters. Of several conditions for one name the first counts.
func (e *entry) values(headers, query []NamedMatch) (err error) {
	if e.headers, err = valueMatches(headers, textproto.CanonicalMIMEHeaderKey); err != nil {
		return err
	}
	e.query, err = valueMatches(query, func(name string) string { return name })
	return err
}

func valueMatches(specs []NamedMatch, canonical func(string) string) (all []valueMatch, err error) {
	seen := map[string]bool{}
	for _, s := range specs {
		v := valueMatch{name: canonical(s.Name), value: s.Value}
		if seen[v.name] {
			continue
		}
		seen[v.name] = true
		switch s.Type {
		case "", "Exact":
		case "RegularExpression":
			if v.regex, err = compilePattern(s.Value, "^", "$"); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("match of type %q is not supported", s.Type)
		}
		all = append(all, v)
	}
	return all, nil
}

// grpcEntry compiles a condition of a GRPCRoute. A gRPC method is a path: /SERVICE/METHOD.
func grpcEntry(m *GRPCMatch) (*entry, error) {
	e := &entry{}
	switch {
	case m.Type == "RegularExpression":
		service, method := cmp.Or(m.Service, "[^/]+"), cmp.Or(m.Method, "[^/]+")
		re, err := compilePattern("/(?:"+service+")/(?:"+method+")", "^", "$")
		if err != nil {
			return nil, err
		}
		e.path = pathMatch{kind: byPattern, value: re.String(), regex: re}
		e.rank.class, e.rank.length, e.rank.method = 1, 2*len(m.Service), len(m.Method)
	case m.Type != "" && m.Type != "Exact":
		return nil, fmt.Errorf("method match of type %q is not supported", m.Type)
	case m.Service != "" && m.Method != "":
		e.exact("/" + m.Service + "/" + m.Method)
	case m.Service != "":
		e.prefix(byElements, "/"+m.Service+"/")
	case m.Method != "":
		re, err := compilePattern("/[^/]+/"+regexp.QuoteMeta(m.Method), "^", "$")
		if err != nil {
			return nil, err
		}
		e.path = pathMatch{kind: byPattern, value: re.String(), regex: re}
		e.rank.method = len(m.Method)
	default:
		e.prefix(byElements, "/")
		e.rank.length = 0
	}
	return e, e.values(m.Headers, nil)
}

// A miss is the first part of an entry that a request does not meet.
type miss uint8

const (
	missNone miss = iota
	missPath
	missMethod
	missHeader
	missQuery
)

// missed returns the first part that a request does not meet, and for headers and parameters which one. The path of the
// request is a prefix or an exact match already if indexed is set. captures are the groups of a regular expression.
func (e *entry) missed(r Request, path string, indexed bool) (m miss, name string) {
	if !indexed && !e.path.matches(path) {
		return missPath, ""
	}
	if e.method != "" && e.method != r.Method() {
		return missMethod, ""
	}
	for i := range e.headers {
		if value, ok := r.Header(e.headers[i].name); !e.headers[i].matches(value, ok) {
			return missHeader, e.headers[i].name
		}
	}
	for i := range e.query {
		if value, ok := r.Query(e.query[i].name); !e.query[i].matches(value, ok) {
			return missQuery, e.query[i].name
		}
	}
	return missNone, ""
}

func (v *valueMatch) matches(value string, present bool) bool {
	var equal bool
	switch {
	case !present:
	case v.any:
		equal = true
	case v.regex != nil:
		equal = v.regex.MatchString(value)
	default:
		equal = value == v.value
	}
	return equal != v.not
}

func (p *pathMatch) matches(path string) bool {
	switch p.kind {
	case byExact:
		return path == p.value
	case byPattern:
		return p.regex.MatchString(path)
	case byText:
		return strings.HasPrefix(path, p.value)
	}
	return strings.HasPrefix(path, p.value) && (len(path) == len(p.value) || path[len(p.value)] == '/')
}

// prefixLength returns the length of the matched prefix, for ReplacePrefixMatch.
func (p *pathMatch) prefixLength() int {
	if p.kind == byElements || p.kind == byText {
		return len(p.value)
	}
	return 0
}
