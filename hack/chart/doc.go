// Package chart makes the Helm chart out of what `fairway install` applies, so that the two
// cannot differ.
//
//	deploy/ ─ install.Render ─┬ without components ┐            ┌ templates/*.yaml
//	                          ├ with one, each     ├─ merge ────┤ values.yaml, values.schema.json
//	                          └ with DNS, …        ┘            └ README.md, NOTES.txt
//
// What all renderings have is written as it is, what one of them has besides as a condition on
// the values that choose it. Fields that operators change become values; their defaults are
// what deploy/ has. It promises templates of text, conditions and values only, and an error where
// a component does what a condition cannot say. That the chart renders to the objects of `fairway
// install`, for each component and combination, is tested with Helm in test/chart.
package chart
