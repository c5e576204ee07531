package ingress

import (
	"regexp"
	"strconv"
	"time"
)

// The forms of texts in a RoutePolicy. Its CustomResourceDefinition has the same.
var (
	methodForm = regexp.MustCompile(`^[A-Z]{1,20}$`)
	tokenForm  = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$") // of RFC 9110
	urlForm    = regexp.MustCompile(`^https?://[!-.0-~][!-~]{0,1000}$`)
	signInForm = regexp.MustCompile(`^(https?://[!-.0-~]|/)[!-~]{0,1000}$`)
	pathForm   = regexp.MustCompile(`^/[!-:<-~]{0,1000}$`)
	hostForm   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	freeForm   = regexp.MustCompile(`^.{0,256}$`)
)

// The largest numbers of a RoutePolicy.
const (
	maxCount    = 1000000
	maxAttempts = 100
	maxDuration = 99999 * time.Hour
)

// form returns the value of an annotation if it has the form, and "" otherwise. Then a note says what it should be.
func (r *reader) form(key, value string, form *regexp.Regexp, want string) string {
	if value == "" || form.MatchString(value) {
		return value
	}
	r.note(r.g, Lost, key, "%q is not %s", value, want)
	return ""
}

// duration writes a duration as Gateway API does (GEP-2257): no fractions, no zero parts.
func duration(d time.Duration) string {
	d = min(d, maxDuration)
	text := ""
	for _, part := range []struct {
		unit time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / part.unit; n > 0 {
			text += strconv.FormatInt(int64(n), 10) + part.name
			d %= part.unit
		}
	}
	if text == "" {
		return "0s"
	}
	return text
}
