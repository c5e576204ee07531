package plan

import (
	"regexp"
	"slices"
	"strings"
)

// A Filter chooses names as ExternalDNS does. The zero value chooses all names.
type Filter struct {
	Include, Exclude   []string // example.org: it and all below; .example.org: all below
	Regex, RegexExcept *regexp.Regexp
}

// Match reports whether the filter chooses a name. A regular expression replaces Include and Exclude.
func (f Filter) Match(name string) bool {
	if f.Regex != nil || f.RegexExcept != nil {
		return (f.RegexExcept == nil || !f.RegexExcept.MatchString(name)) && (f.Regex == nil || f.Regex.MatchString(name))
	}
	within := func(domain string) bool {
		domain = strings.ToLower(strings.TrimSuffix(strings.TrimSpace(domain), "."))
		if strings.HasPrefix(domain, ".") {
			return strings.HasSuffix(name, domain)
		}
		return domain != "" && (name == domain || strings.HasSuffix(name, "."+domain))
	}
	return (len(f.Include) == 0 || slices.ContainsFunc(f.Include, within)) && !slices.ContainsFunc(f.Exclude, within)
}
