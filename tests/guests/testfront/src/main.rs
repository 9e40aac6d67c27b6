#![no_std]
#![no_main]
//! (being built)
